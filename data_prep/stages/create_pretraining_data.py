"""The stage that makes pre-training records of sentences."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
from absl import flags

from bert_tf.cli.flags import Number, flag_group
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
from bert_tf.stages.journal import Journal
from bert_tf.stages.manifest import describe_vocabulary, intact_manifest, is_output_name
from bert_tf.stages.stage import REMAKE, Built, SharedDirectory, run_stage
from bert_tf.text.tokenizer_files import TokenizerContent, TokenizerFiles
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
from data_prep.stages.stage import (
    Sizes,
    begin_progress,
    choose_executor,
    define_versions_flag,
    define_workers_flag,
    find_text_files,
    settings_from_flags,
)
from data_prep.stages.vocabulary_flags import chosen_vocabulary, define_vocabulary_flags
from data_prep.text.blocks import Block, decode_document, group_documents, read_documents
from data_prep.text.wikitext_corpus import (
    PLAIN,
    UNKNOWN,
    WIKITEXT,
    define_markup_flag,
    encode_unknown_words,
    parameters_of,
    validate_markup,
)

STAGE = "create_pretraining_data"
VERSION = 1  # goes up when the output of equal input changes
MASKING = ("static", "dynamic")

_SIZES = Sizes(document=Sizes.block // 4)
_OUTPUT_DIR_NAME = re.compile(r"records-\d{5,}-of-\d{5,}\.tfrecord(\.gz)?")

# Random number streams of a block.
_PAIRS, _TRUNCATION, _SHUFFLE = range(3)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the stage; fields are named like the flags.

    Attributes:
      input_file: comma-separated files, globs and directories.
      output_file: comma-separated record files in one directory; or
      output_dir, num_output_files: a directory, and the number of files to write there.
      compression: "none", or "gzip", whose files can be read in any order.
      tokenizer_files: the vocabulary and its casing.
      do_whole_word_mask, ngram, favor_shorter_ngram, masked_lm_prob, max_predictions_per_seq: how
        words are masked, for "static" only.
      max_seq_length: positions of a sequence.
      random_seed: of all draws.
      dupe_factor: passes over the text.
      short_seq_prob: share of the documents that give shorter sequences.
      masking: "static" stores masks, "dynamic" leaves them to training.
      nsp: sentence pairs for the next-sentence task, or single segments.
      sentence_order: the pairs are for the sentence-order task instead.
      pack_documents: single segments go on with the next document; no sequence is short then.
      markup: "plain", or "wikitext", whose <unk> is the unknown token.
      num_workers: processes, 0 for all cores.
      scheduler: address of a Dask scheduler, whose workers are used instead.
      other_versions: "remake" or "keep", what becomes of output that other versions made.
    """

    input_file: str
    tokenizer_files: TokenizerFiles
    output_file: str | None = None
    output_dir: str | None = None
    num_output_files: int = 8
    compression: str = "none"
    do_whole_word_mask: bool = False
    ngram: int = 1
    favor_shorter_ngram: bool = True
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    random_seed: int = 12345
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    masking: str = "static"
    nsp: bool = True
    sentence_order: bool = False
    pack_documents: bool = False
    markup: str = PLAIN
    num_workers: int = 0
    scheduler: str | None = None
    other_versions: str = REMAKE

    @property
    def rules(self) -> SequenceRules:
        """The settings that determine the sequences."""
        return SequenceRules(
            self.max_seq_length,
            self.short_seq_prob,
            self.nsp,
            self.pack_documents,
            self.sentence_order,
        )


class EncodedBlock(NamedTuple):
    """The instances of a block: record i is in ``groups[i % number of output files]``."""

    groups: list[FramedRecords]
    counts: dict[str, int]
    num_input_bytes: int


def run(settings: Settings, *, sizes: Sizes = _SIZES) -> Path:
    """Makes the records; returns the output directory."""
    validate(settings)
    directory, names = _resolve_outputs(settings)
    files = find_text_files(settings.input_file)
    executor = choose_executor(settings.num_workers, settings.scheduler)
    # Read now, since the file may change while records are made, and workers may not have it.
    tokenizer = settings.tokenizer_files.read()
    vocabulary = describe_vocabulary(tokenizer.load())
    copy = {vocabulary.file_name: tokenizer.content}

    def build(directory: Path, journal: Journal) -> Built:
        encoder = functools.partial(BlockEncoder, settings, len(names), tokenizer)
        encode = functools.partial(executor.map, encoder, what=STAGE)
        built = _build(settings, files, sizes, names, encode, directory, journal)
        for name, content in copy.items():
            (directory / name).write_bytes(content)
        return Built({**built.outputs, **dict.fromkeys(copy)}, built.counts)

    return run_stage(
        STAGE,
        directory,
        parameters=_parameters(settings, sizes, names),
        inputs=files,
        build=build,
        made_by=_versions(settings, vocabulary.kind),
        other_versions=settings.other_versions,
        vocabulary=vocabulary,
        shared=_shared_directory(settings, names, copies=tuple(copy)),
        journaled=True,
    )


def _versions(settings: Settings, tokenizer: str) -> dict[str, str]:
    compression = [ZLIB] if settings.compression == "gzip" else []
    return maker(VERSION, tokenizer_package(tokenizer), "numpy", *compression)


def validate(settings: Settings) -> None:
    """Raises UserError for invalid values."""
    # 5: [CLS] and two [SEP] leave room for two tokens, the shortest target length.
    _require(settings, "max_seq_length", settings.max_seq_length >= 5, "give at least 5")
    _require(settings, "dupe_factor", settings.dupe_factor >= 1, "give at least 1")
    _require(settings, "num_output_files", settings.num_output_files >= 1, "give at least 1")
    share = 0 <= settings.short_seq_prob <= 1
    _require(settings, "short_seq_prob", share, "give a share from 0 to 1")
    share = 0 < settings.masked_lm_prob <= 1
    _require(settings, "masked_lm_prob", share, "give a share above 0, up to 1")
    fits = 1 <= settings.max_predictions_per_seq <= settings.max_seq_length
    _require(settings, "max_predictions_per_seq", fits, "give 1 to max_seq_length")
    _require(settings, "ngram", settings.ngram >= 1, "give at least 1")
    validate_markup(settings.markup)
    _require(settings, "masking", settings.masking in MASKING, f"give one of {MASKING}")
    known = settings.compression in COMPRESSION
    _require(settings, "compression", known, f"give one of {COMPRESSION}")
    of_masks = {"do_whole_word_mask": settings.do_whole_word_mask, "ngram": settings.ngram > 1}
    for name, is_given in of_masks.items():
        if settings.masking == "dynamic" and is_given:
            raise UserError(
                f"--{name} and --masking=dynamic contradict each other: records for dynamic "
                f"masking have no masks; give --{name} in training instead."
            )
    if settings.sentence_order and not settings.nsp:
        raise UserError(
            "--sentence_order and --nsp=false contradict each other: the order is that of two "
            "segments, and --nsp=false makes single ones; leave one of the flags out."
        )
    if settings.pack_documents and settings.nsp:
        raise UserError(
            "--pack_documents and --nsp contradict each other: the next sentence of a pair is of "
            "the same document; give --nsp=false."
        )


def _require(settings: Settings, name: str, is_valid: bool, advice: str) -> None:
    if not is_valid:
        raise UserError(f"--{name}={getattr(settings, name)}: {advice}.")


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
    paths = [Path(part.strip()) for part in settings.output_file.split(",") if part.strip()]
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


def _shared_directory(
    settings: Settings, names: list[str], *, copies: tuple[str, ...]
) -> SharedDirectory | None:
    """With --output_file, other calls may write other files into the directory."""
    if not settings.output_file:
        return None
    mask_parameters = ("max_predictions_per_seq",) if settings.masking == "static" else ()
    return SharedDirectory(
        flag="output_file",
        names=(*names, *(name + OFFSETS_SUFFIX for name in names)),
        common=copies,
        must_agree=("masking", "max_seq_length", *mask_parameters, "nsp", "sentence_order"),
        may_differ=(
            *("dupe_factor", "short_seq_prob", "masked_lm_prob", "do_whole_word_mask"),
            *("ngram", "favor_shorter_ngram", "pack_documents"),
        ),
    )


def _parameters(settings: Settings, sizes: Sizes, names: list[str]) -> dict[str, object]:
    """The parameters that determine the output, besides the inputs and the vocabulary."""
    shared = ("max_seq_length", "random_seed", "dupe_factor", "short_seq_prob", "masking", "nsp")
    mask_parameters = ("max_predictions_per_seq", "masked_lm_prob", "do_whole_word_mask")
    chosen = shared + mask_parameters if settings.masking == "static" else shared
    if settings.ngram > 1:
        chosen += ("ngram", "favor_shorter_ngram")
    return {
        **{name: getattr(settings, name) for name in chosen},
        "block_bytes": sizes.block,
        "files": names,
        **({"pack_documents": True} if settings.pack_documents else {}),
        **({"sentence_order": True} if settings.sentence_order else {}),
        **({"compression": settings.compression} if settings.compression != "none" else {}),
        **parameters_of(settings.markup),
    }


def _build(
    settings: Settings,
    files: list[Path],
    sizes: Sizes,
    names: list[str],
    encode: Callable[[Iterable[Block]], Iterable[EncodedBlock]],
    directory: Path,
    journal: Journal,
) -> Built:
    progress = begin_progress(STAGE, journal, files)
    # Counted anew by a call that continues, since it reads all lines again.
    cuts: collections.Counter[str] = collections.Counter()
    documents = itertools.chain.from_iterable(
        read_documents(path, max_bytes=sizes.document, cuts=cuts) for path in files
    )
    blocks = group_documents(documents, block_bytes=sizes.block)
    results = encode(journal.remaining(blocks))
    totals = journal.totals
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
            journal.add_item(result.counts, input_bytes=result.num_input_bytes, outputs=writers)
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
    return Built(outputs, {**totals, **cuts})


def _label_1(settings: Settings) -> str:
    """The name of the number of pairs with label 1."""
    return "swapped" if settings.sentence_order else "random_next"


class BlockEncoder:
    """Encodes blocks of text as records; one instance per worker process."""

    def __init__(
        self,
        settings: Settings,
        num_groups: int,
        content: TokenizerContent,
        *,
        encode_at_once: int = 512,  # instances; keeps the arrays within the processor's cache
    ):
        self._settings = settings
        self._rules = settings.rules
        self._num_groups = num_groups
        self._encode_at_once = encode_at_once
        tokenizer = content.load()
        vocabulary = describe_vocabulary(tokenizer)
        self._special_ids = dict(vocabulary.special_ids)
        self._starts_word = np.array(tokenizer.word_starts(range(vocabulary.size)))
        self._encode_text = tokenizer.encode
        if settings.markup == WIKITEXT:
            self._encode_text = encode_unknown_words(tokenizer.encode, tokenizer.unk_id)
        self._masking = MaskingSettings(
            masked_lm_prob=settings.masked_lm_prob,
            max_predictions_per_seq=settings.max_predictions_per_seq,
            vocab_size=vocabulary.size,
            special_ids=self._special_ids,
            do_whole_word_mask=settings.do_whole_word_mask,
            ngram=settings.ngram,
            favor_shorter_ngram=settings.favor_shorter_ngram,
        )

    def __call__(self, block: Block) -> EncodedBlock:
        """Makes all passes over a block and shuffles their instances."""
        texts = itertools.chain.from_iterable(map(decode_document, block.documents))
        tokenized = tokenize_documents(texts, self._encode_text)
        counts = {
            "documents": tokenized.num_documents,
            "sentences": tokenized.num_sentences,
            "tokens": len(tokenized.tokens),
        }
        if self._rules.pack_documents:
            tokenized = join_documents(tokenized, self._special_ids["sep"])
        spans = self._make_spans(tokenized, block.number)
        records: list[bytes] = []
        for start in range(0, len(spans), self._encode_at_once):
            part = spans[start : start + self._encode_at_once]
            numbers = np.arange(start, start + len(part))
            keys = example_keys(self._settings.random_seed, block.number, numbers)
            records += self._encode(tokenized, part, keys)
        groups = [
            frame_records(records[k :: self._num_groups], compression=self._settings.compression)
            for k in range(self._num_groups)
        ]
        counts["records"] = len(spans)
        num_special = self._rules.max_seq_length - self._rules.max_tokens
        counts["positions_used"] = spans.num_tokens + num_special * len(spans)
        unknown_words = sum(d.text.count(UNKNOWN.encode()) for d in block.documents)
        if unknown_words:
            counts["unknown_words"] = unknown_words
        if self._rules.nsp:
            counts[_label_1(self._settings)] = int(spans.is_random.sum())
        if self._rules.sentence_order:
            counts["documents_of_one_token"] = tokenized.num_documents_of_one_token
        num_bytes = sum(len(document.text) for document in block.documents)
        return EncodedBlock(groups, counts, num_bytes)

    def _make_spans(self, tokenized: TokenizedBlock, number: int) -> Spans:
        passes = [
            make_spans(
                tokenized,
                self._rules,
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
        spans = truncate_spans(spans, self._rules.max_tokens, generator)
        key = derive_keys(self._seed(_SHUFFLE, number))
        return spans[np.argsort(random_bits(key, len(spans))[0], kind="stable")]

    def _seed(self, stream: int, *counters: int) -> int:
        return int(derive_keys(self._settings.random_seed, stream, *counters)[0])

    def _encode(self, tokenized: TokenizedBlock, spans: Spans, keys: np.ndarray) -> list[bytes]:
        features = assemble(
            tokenized,
            spans,
            self._rules,
            special_ids=self._special_ids,
            starts_word=self._starts_word,
        )
        if self._settings.masking == "dynamic":
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


@flag_group("Records")
def define_parameter_flags() -> None:
    """Defines the flags of this stage only."""
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}

    define_number = functools.partial(flags.DEFINE, Number())

    def define(kind, name: str, help_text: str, **limits: object) -> None:
        kind(name, defaults[name], help_text, **limits)

    define(flags.DEFINE_integer, "num_output_files", "Record files in --output_dir.")
    flags.DEFINE_enum(
        "compression",
        defaults["compression"],
        COMPRESSION,
        "gzip: a third of the size; training reads these files in place, in any order.",
    )
    define(flags.DEFINE_bool, "do_whole_word_mask", "Mask all pieces of a word together.")
    define(
        flags.DEFINE_integer,
        "ngram",
        "Mask up to this many consecutive words together, or tokens without --do_whole_word_mask.",
    )
    define(
        flags.DEFINE_bool,
        "favor_shorter_ngram",
        "Masked n-grams have shares of 1/n; false: the longest have the largest share.",
    )
    define(flags.DEFINE_integer, "max_seq_length", "Positions of a sequence.")
    define(
        flags.DEFINE_integer, "max_predictions_per_seq", "Maximum number of masks in a sequence."
    )
    define(flags.DEFINE_integer, "random_seed", "Seed of all random draws.")
    define(flags.DEFINE_integer, "dupe_factor", "Passes over the text, each with different masks.")
    define(define_number, "masked_lm_prob", "Share of the tokens to mask.")
    define(define_number, "short_seq_prob", "Share of the documents that give shorter sequences.")
    flags.DEFINE_enum(
        "masking",
        defaults["masking"],
        MASKING,
        "static: masks are stored; dynamic: they are drawn at training time.",
    )
    define(
        flags.DEFINE_bool,
        "nsp",
        "Sentence pairs for the next-sentence task; false: single segments of full length.",
    )
    define(
        flags.DEFINE_bool,
        "sentence_order",
        "Sentence pairs for ALBERT's sentence-order task instead: consecutive segments, half of "
        "them swapped (label 1).",
    )
    define(
        flags.DEFINE_bool,
        "pack_documents",
        "With --nsp=false: segments go on with the next document after a [SEP], so that sequences "
        "are full; --short_seq_prob has no effect.",
    )


@flag_group("Input and output")
def define_flags() -> None:
    """Defines the flags of ``python -m data_prep.create_pretraining_data``."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Text, one sentence per line: comma-separated files, globs and directories.",
    )
    flags.mark_flag_as_required("input_file")
    flags.DEFINE_string("output_dir", None, "Directory for the records.")
    flags.DEFINE_string(
        "output_file", None, "Instead of --output_dir: comma-separated names in one directory."
    )
    define_versions_flag()
    define_vocabulary_flags()
    define_workers_flag()
    define_markup_flag()
    define_parameter_flags()


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the command with the settings that the flags give."""
    chosen = chosen_vocabulary(values)
    if chosen is None:
        raise UserError("give --vocab_file, --spm_model_file or --init_checkpoint.")
    run(settings_from_flags(Settings, values, tokenizer_files=chosen))
