"""The stage that makes pre-training records of sentences."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, ClassVar, NamedTuple

import numpy as np
from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import AT_LEAST_ONE, options_of, setting
from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import describe_vocabulary, intact_manifest, is_output_name
from bert_tf.durable.stage import Built, run_stage
from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.input.stateless_random import derive_keys, random_bits
from bert_tf.records.info import one_sided_labels
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import (
    COMPRESSION,
    FramedRecords,
    TFRecordWriter,
    frame_records,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.unknown_share import CountingTokenizer, UnknownTokens
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.files import OFFSETS_SUFFIX, SIDE_FILE_SUFFIXES
from bert_tf.util.versions import ZLIB, maker, tokenizer_package
from data_prep.instances.instances import (
    SequenceRules,
    Spans,
    TokenizedBlock,
    assemble,
    join_documents,
    make_spans,
    tokenize_documents,
    truncate_spans,
)
from data_prep.stages.journal import Journal, JournaledDirectory
from data_prep.stages.settings import CallSettings, InputSettings
from data_prep.stages.shared_directory import SharedDirectory
from data_prep.stages.stage import begin_progress, define_settings, find_text_files
from data_prep.stages.tokenizer_content import TokenizerContent
from data_prep.stages.vocabulary_flags import VocabularyFiles, chosen_vocabulary
from data_prep.text.documents import Block, decode_document, read_blocks
from data_prep.text.wikitext_corpus import (
    PLAIN,
    UNKNOWN,
    WIKITEXT,
    MarkupSettings,
    encode_unknown_words,
)

STAGE = "create_pretraining_data"
VERSION = 1  # goes up when the output of equal input changes
MASKING = STATIC, DYNAMIC = "static", "dynamic"

BLOCK_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = BLOCK_BYTES // 4
_OUTPUT_DIR_NAME = re.compile(r"records-\d{5,}-of-\d{5,}\.tfrecord(\.gz)?")
ENCODE_AT_ONCE = 512  # instances; keeps the arrays within the processor's cache

_UNKNOWN_TOKENS = "unknown_tokens"  # a total of the journal that is not one of the manifest

# Random number streams of a block.
_PAIRS, _TRUNCATION, _SHUFFLE = range(3)


@dataclasses.dataclass(frozen=True)
class CallFiles(declared.Settings):
    """What a call reads besides text, and what it writes; either of the outputs is given.

    Attributes:
      tokenizer_files: the vocabulary and its casing.
    """

    heading: ClassVar[str] = "Input and output"
    tokenizer_files: TokenizerFiles
    output_file: str | None = setting(
        None, "Instead of --output_dir: comma-separated names in one directory.", kind=str
    )
    output_dir: str | None = setting(None, "Directory for the records.", kind=str)


@dataclasses.dataclass(frozen=True)
class RecordRules(SequenceRules, MaskingOptions):
    """What records are made of the text."""

    heading: ClassVar[str] = "Records"
    num_output_files: int = setting(8, "Record files in --output_dir.", bounds=AT_LEAST_ONE)
    compression: str = setting(
        "none",
        "gzip: a third of the size; training reads these files in place, in any order.",
        choices=COMPRESSION,
    )
    random_seed: int = setting(12345, "Seed of all random draws.")
    dupe_factor: int = setting(
        10, "Passes over the text, each with different masks.", bounds=AT_LEAST_ONE
    )
    masking: str = setting(
        STATIC,
        "static: masks are stored; dynamic: they are drawn at training time.",
        choices=MASKING,
    )

    def contradictions(self) -> Iterator[str]:
        """Raises UserError for more masks than positions, and for masks that are not stored."""
        if self.max_predictions_per_seq > self.max_seq_length:
            yield f"{self.given('max_predictions_per_seq')}: give 1 to max_seq_length."
        for name in self.together if self.masking == DYNAMIC else ():
            yield (
                f"--{name} and --masking=dynamic contradict each other: records for dynamic "
                f"masking have no masks; give --{name} in training instead."
            )
        yield from super().contradictions()


@dataclasses.dataclass(frozen=True)
class Settings(CallSettings, MarkupSettings, RecordRules, CallFiles, InputSettings):
    """Settings of the stage; fields are named like the flags."""


class EncodedBlock(NamedTuple):
    """The instances of a block: record i is in ``groups[i % number of output files]``."""

    groups: list[FramedRecords]
    counts: dict[str, int]
    unknown: UnknownTokens
    num_input_bytes: int


def run(settings: Settings) -> Path:
    """Makes the records; returns the output directory."""
    directory, names = _resolve_outputs(settings)
    files = find_text_files(settings.input_file)
    # Read now, since the file may change while records are made, and workers may not have it.
    tokenizer = TokenizerContent.of(settings.tokenizer_files)
    vocabulary = describe_vocabulary(tokenizer.load())
    copy = {vocabulary.file_name: tokenizer.content}

    def build(directory: Path, journal: Journal) -> Built:
        encoder = functools.partial(BlockEncoder, settings, len(names), tokenizer)
        built = _build(settings, files, names, encoder, directory, journal)
        for name, content in copy.items():
            (directory / name).write_bytes(content)
        return dataclasses.replace(built, outputs={**built.outputs, **dict.fromkeys(copy)})

    return run_stage(
        STAGE,
        directory,
        parameters=_parameters(settings, names),
        inputs=files,
        build=build,
        made_by=_versions(settings, vocabulary.kind),
        other_versions=settings.other_versions,
        vocabulary=vocabulary,
        use=_directory_use(settings, names, copies=tuple(copy)),
    )


def _versions(settings: Settings, tokenizer: str) -> dict[str, str]:
    compression = [ZLIB] if settings.compression == "gzip" else []
    return maker(VERSION, tokenizer_package(tokenizer), "numpy", *compression)


def _resolve_outputs(settings: Settings) -> tuple[Path, list[str]]:
    """The output directory and the names of the record files in it."""
    if bool(settings.output_file) == bool(settings.output_dir):
        given = "both were given" if settings.output_file else "none was given"
        raise UserError(f"give one of --output_dir and --output_file; {given}.")
    if settings.output_dir:
        total = settings.num_output_files
        suffix = ".tfrecord.gz" if settings.compression == "gzip" else ".tfrecord"
        names = [f"records-{index:05d}-of-{total:05d}{suffix}" for index in range(total)]
        directory = Path(settings.output_dir)
        _refuse_named_files(directory)
        return directory, names
    given = settings.output_file or ""
    paths = [Path(part.strip()) for part in given.split(",") if part.strip()]
    if len({path.parent for path in paths}) != 1 or len(set(paths)) != len(paths):
        raise UserError(
            f"--output_file={settings.output_file}: give different names in one directory."
        )
    directory, names = paths[0].parent, [path.name for path in paths]
    for name in names:
        if not is_output_name(name):
            raise UserError(
                f"--output_file={settings.output_file}: {name!r} cannot be the name of a record "
                "file; choose another name, without a dot in front."
            )
    return directory, names


def _refuse_named_files(directory: Path) -> None:
    """Refuses a directory with files of --output_file, which --output_dir would replace."""
    manifest = intact_manifest(directory)
    if manifest is None or manifest.stage != STAGE:
        return
    records = (n for n in manifest.output_names if not n.endswith(SIDE_FILE_SUFFIXES))
    named = [name for name in records if not _OUTPUT_DIR_NAME.fullmatch(name)]
    if named:
        raise UserError(
            f"--output_dir: {directory} contains {min(named)} from a run with --output_file; "
            "choose "
            "another directory."
        )


def _directory_use(
    settings: Settings, names: list[str], *, copies: tuple[str, ...]
) -> JournaledDirectory:
    """With --output_file, other calls may write other files into the directory."""
    if not settings.output_file:
        return JournaledDirectory()
    mask_parameters = ("max_predictions_per_seq",) if settings.masking == STATIC else ()
    return SharedDirectory(
        flag="output_file",
        names=(*names, *(name + OFFSETS_SUFFIX for name in names)),
        common=copies,
        must_agree=("masking", "max_seq_length", *mask_parameters, "nsp", "sentence_order"),
        may_differ=(
            *("dupe_factor", "short_seq_prob"),
            *(name for name in options_of(MaskingOptions) if name != "max_predictions_per_seq"),
            "pack_documents",
        ),
    )


def _parameters(settings: Settings, names: list[str]) -> dict[str, object]:
    """The parameters that determine the output, besides the inputs and the vocabulary."""
    shared = ("max_seq_length", "random_seed", "dupe_factor", "short_seq_prob", "masking", "nsp")
    return {
        **{name: getattr(settings, name) for name in shared},
        **(settings.parameters() if settings.masking == STATIC else {}),
        "block_bytes": BLOCK_BYTES,
        "files": names,
        **({"pack_documents": True} if settings.pack_documents else {}),
        **({"sentence_order": True} if settings.sentence_order else {}),
        **({"compression": settings.compression} if settings.compression != "none" else {}),
        **settings.markup_parameters,
    }


def _build(
    settings: Settings,
    files: list[Path],
    names: list[str],
    encoder: Callable[[], BlockEncoder],
    directory: Path,
    journal: Journal,
) -> Built:
    progress = begin_progress(STAGE, journal, files)
    # A resumed call starts counting from 0, since it reads all lines again.
    cuts: collections.Counter[str] = collections.Counter()
    blocks = read_blocks(files, block_bytes=BLOCK_BYTES, max_bytes=MAX_DOCUMENT_BYTES, cuts=cuts)
    results = settings.executor.map(encoder, journal.remaining(blocks), what=STAGE)
    totals, unknown = journal.totals, UnknownTokens()
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                TFRecordWriter(directory / name, compression=settings.compression, continues=True)
            )
            for name in names
        ]
        for result in results:
            for place, group in enumerate(result.groups):
                writers[(totals["records"] + place) % len(writers)].write_framed(group)
            unknown.add(result.unknown)
            counts = {**result.counts, _UNKNOWN_TOKENS: result.unknown.unknown}
            journal.add_item(counts, input_bytes=result.num_input_bytes, outputs=writers)
            progress.advance(result.num_input_bytes / 1e6)
    if not totals.get("records"):
        contents = "only documents of one token" if totals.get("tokens") else "only white space"
        raise UserError(f"--input_file: {settings.input_file!r} contains {contents}.")
    progress.finish()
    if settings.markup == PLAIN and totals.get("unknown_words"):
        report(
            f"{STAGE}: {totals['unknown_words']:,} words are {UNKNOWN}, each encoded as several "
            f"tokens; give --markup={WIKITEXT} to map them to the unknown token"
        )
    if settings.nsp and (what := one_sided_labels(totals[_label_1(settings)], totals["records"])):
        report(f"{STAGE}: warning: {what}")
    outputs: dict[str, int | None] = {}
    for name, writer in zip(names, writers):
        outputs[name] = writer.num_records
        outputs[name + OFFSETS_SUFFIX] = None
    # A resumed call has the numbers of all blocks, and the pieces of text of its own.
    unknown.tokens, unknown.unknown = totals["tokens"], totals.pop(_UNKNOWN_TOKENS, 0)
    return Built(outputs, {**totals, **cuts}, unknown)


def _label_1(settings: Settings) -> str:
    """The name of the number of pairs with label 1."""
    return "swapped" if settings.sentence_order else "random_next"


class BlockEncoder:
    """Encodes blocks of text as records; one instance per worker process."""

    def __init__(self, settings: Settings, num_groups: int, content: TokenizerContent):
        self._settings = settings
        self._num_groups = num_groups
        self._tokenizer = tokenizer = CountingTokenizer(content.load())
        vocabulary = describe_vocabulary(tokenizer)
        self._special_ids = dict(vocabulary.special_ids)
        self._starts_word = np.array(tokenizer.word_starts(range(vocabulary.size)))
        self._encode_text: Callable[[str], list[int]] = tokenizer.encode
        if settings.markup == WIKITEXT:
            self._encode_text = encode_unknown_words(tokenizer.encode, tokenizer.unk_id)
        self._masking = MaskingSettings(settings, vocabulary.size, self._special_ids)

    def __call__(self, block: Block) -> EncodedBlock:
        """Makes all passes over a block and shuffles their instances."""
        texts = itertools.chain.from_iterable(map(decode_document, block.documents))
        tokenized = tokenize_documents(texts, self._encode_text)
        counts = {
            "documents": tokenized.num_documents,
            "sentences": tokenized.num_sentences,
            "tokens": len(tokenized.tokens),
        }
        if self._settings.pack_documents:
            tokenized = join_documents(tokenized, self._special_ids["sep"])
        spans = self._make_spans(tokenized, block.number)
        records: list[bytes] = []
        for start in range(0, len(spans), ENCODE_AT_ONCE):
            part = spans[start : start + ENCODE_AT_ONCE]
            numbers = np.arange(start, start + len(part))
            keys = example_keys(self._settings.random_seed, block.number, numbers)
            records += self._encode(tokenized, part, keys)
        groups = [
            frame_records(records[k :: self._num_groups], compression=self._settings.compression)
            for k in range(self._num_groups)
        ]
        counts["records"] = len(spans)
        num_special = self._settings.max_seq_length - self._settings.max_tokens
        counts["positions_used"] = spans.num_tokens + num_special * len(spans)
        unknown_words = sum(d.text.count(UNKNOWN.encode()) for d in block.documents)
        if unknown_words:
            counts["unknown_words"] = unknown_words
        if self._settings.nsp:
            counts[_label_1(self._settings)] = int(spans.is_random.sum())
        if self._settings.sentence_order:
            counts["documents_of_one_token"] = tokenized.num_documents_of_one_token
        num_bytes = sum(len(document.text) for document in block.documents)
        return EncodedBlock(groups, counts, self._tokenizer.take(), num_bytes)

    def _make_spans(self, tokenized: TokenizedBlock, number: int) -> Spans:
        passes = [
            make_spans(
                tokenized,
                self._settings,
                pass_number=pass_number,
                rng=random.Random(self._seed(_PAIRS, number, pass_number)),
            )
            for pass_number in range(self._settings.dupe_factor)
        ]
        spans = Spans(
            *(
                np.concatenate([getattr(p, name) for p in passes])
                for name in ("a", "b", "is_random")
            )
        )
        generator = np.random.Generator(np.random.PCG64(self._seed(_TRUNCATION, number)))
        spans = truncate_spans(spans, self._settings.max_tokens, generator)
        key = derive_keys(self._seed(_SHUFFLE, number))
        return spans[np.argsort(random_bits(key, len(spans))[0], kind="stable")]

    def _seed(self, stream: int, *counters: int) -> int:
        return int(derive_keys(self._settings.random_seed, stream, *counters)[0])

    def _encode(self, tokenized: TokenizedBlock, spans: Spans, keys: np.ndarray) -> list[bytes]:
        features = assemble(
            tokenized,
            spans,
            self._settings,
            special_ids=self._special_ids,
            starts_word=self._starts_word,
        )
        if self._settings.masking == DYNAMIC:
            return PRETRAINING_UNMASKED.encode_batch(features)
        masked = mask_batch(
            features["input_ids"],
            features["input_mask"].sum(axis=1),
            keys=keys,
            settings=self._masking,
            word_starts=features.pop("word_starts"),
        )
        features["input_ids"] = masked.input_ids
        features["masked_lm_positions"] = masked.positions
        features["masked_lm_ids"] = masked.label_ids
        features["masked_lm_weights"] = masked.weights
        return PRETRAINING_MASKED.encode_batch(features)


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.create_pretraining_data``."""
    define_settings(
        Settings,
        VocabularyFiles,
        values=values,
        input_file="Text, one sentence per line: comma-separated files, globs and directories.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the command with the settings that the flags give."""
    chosen = chosen_vocabulary(from_flags(VocabularyFiles, values), values.max_seq_length)
    if chosen is None:
        raise UserError("give --vocab_file, --spm_model_file or --init_checkpoint.")
    run(from_flags(Settings, values, tokenizer_files=chosen))
