"""The conversion of records to and from the formats of other programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import options_of, setting
from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.executor import Processes
from bert_tf.durable.manifest import (
    Manifest,
    VocabularyEntry,
    describe_vocabulary,
    find_manifest,
    require_listed_files,
)
from bert_tf.durable.stage import Built, run_stage
from bert_tf.input.masking import MaskingSettings
from bert_tf.records.info import CONVERSION_STAGE
from bert_tf.records.layouts import PREDICTIONS, PRETRAINING_MASKED, PRETRAINING_UNMASKED
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import report
from bert_tf.util.digest import digest_of_file
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files, require_file
from bert_tf.util.parquet import import_parquet
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker
from data_prep.conversion.record_inputs import (
    LDDL,
    Batch,
    BatchReader,
    Sizes,
    kind_of,
    layout_of,
    read_batches,
)
from data_prep.conversion.record_masks import draw_masks, take_masks_out
from data_prep.conversion.record_outputs import (
    FORMATS,
    GOOGLE,
    PARQUET,
    TEXT,
    TF2,
    TFRECORDS,
    Writer,
    encode,
)
from data_prep.conversion.record_rows import Layout, require_valid
from data_prep.stages.settings import FileSettings, ProcessSettings, VersionSettings
from data_prep.stages.stage import define_settings
from data_prep.stages.vocabulary_flags import VocabularyFiles

VERSION = 1  # goes up when the output of equal input changes
EXPORT_STAGE = "export_records"  # of files other than TFRecords
MASKING = KEEP, STATIC, DYNAMIC = "keep", "static", "dynamic"
# Parameters of records that a conversion sets itself.
_OF_FILES = ("files", "block_bytes", "compression")


@dataclasses.dataclass(frozen=True)
class ConversionRules(declared.Settings):
    """What records become.

    Attributes:
      tokenizer_files: the vocabulary, if no manifest next to the records names it.
    """

    heading: ClassVar[str] = "Conversion"
    format: str = setting(
        ...,
        "records: this program's TFRecords; google, tf2: TFRecords with stored masks, tf2 with "
        "TensorFlow 2's names of features; jsonl, parquet: one record per line or row; text: the "
        "original text.",
        kind=str,
        choices=FORMATS,
    )
    masking: str = setting(
        KEEP,
        "static: draw masks for records that have none; dynamic: take stored masks out.",
        choices=MASKING,
    )
    tokenizer_files: TokenizerFiles | None = None
    max_seq_length: int = setting(128, "Positions of a sequence, for LDDL's shards.")
    random_seed: int = setting(12345, "Seed of the masks.")


@dataclasses.dataclass(frozen=True)
class Settings(ProcessSettings, VersionSettings, MaskingOptions, ConversionRules, FileSettings):
    """Settings of the command; n-grams are not drawn here."""


class KnownRecords(NamedTuple):
    """What is known about the records.

    Attributes:
      kind: one of ``record_inputs.KINDS``.
      layout: that of the input.
      parameters: those on which all manifests next to the records agree.
      vocabulary: None if unknown.
      tokenizer_files: None without a vocabulary file.
    """

    kind: str
    layout: Layout
    parameters: Mapping[str, Any]
    vocabulary: VocabularyEntry | None
    tokenizer_files: TokenizerFiles | None


class Converted(NamedTuple):
    """An encoded batch, with its file's number among the inputs, and its records."""

    file: int
    content: Any
    num_records: int


def run(settings: Settings) -> Path:
    """Converts the records; returns the output directory."""
    if settings.format == PARQUET:
        import_parquet()
    require_listed_files(settings.input_file)
    files = expand_record_files(settings.input_file, flag="input_file")
    files = [require_file(path, flag="input_file") for path in files if path.stat().st_size]
    if not files:
        raise UserError(f"--input_file: the files in {settings.input_file!r} are empty.")
    origin = _origin_of(settings, files)
    layout = _output_layout(settings, origin)
    parameters = _parameters(settings, origin, layout)
    return run_stage(
        CONVERSION_STAGE if settings.format in TFRECORDS else EXPORT_STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=files,
        build=functools.partial(_build, settings, files, origin, layout),
        made_by=maker(VERSION, *(["pyarrow"] if settings.format == PARQUET else [])),
        other_versions=settings.other_versions,
        vocabulary=origin.vocabulary,
    )


def _parameters(settings: Settings, origin: KnownRecords, layout: Layout) -> dict[str, Any]:
    """The parameters that determine the output: those of the records, and of their conversion."""
    left_out = _OF_FILES if layout.has_masks else (*_OF_FILES, *options_of(MaskingOptions))
    parameters = {k: v for k, v in origin.parameters.items() if k not in left_out}
    parameters |= {"format": settings.format, "masking": STATIC if layout.has_masks else DYNAMIC}
    if origin.kind == LDDL:
        parameters["max_seq_length"] = settings.max_seq_length
        parameters["max_predictions_per_seq"] = settings.max_predictions_per_seq
    if layout.has_masks and not origin.layout.has_masks:
        parameters |= {**settings.parameters(), "random_seed": settings.random_seed}
    return parameters


def _origin_of(settings: Settings, files: Sequence[Path]) -> KnownRecords:
    kind = kind_of(files)
    sizes = Sizes(settings.max_seq_length, settings.max_predictions_per_seq)
    layout, others = layout_of(files, kind, sizes)
    if others:
        report(
            f"{CONVERSION_STAGE}: {', '.join(others)} is not used in pre-training and is left out"
        )
    found = {directory: find_manifest(directory) for directory in {p.parent for p in files}}
    manifests = {d: m for d, m in sorted(found.items()) if m is not None and m.vocabulary}
    shared = list(manifests.values())
    parameters = {
        name: value
        for name, value in (shared[0].parameters if shared else {}).items()
        if all(manifest.parameters.get(name) == value for manifest in shared)
    }
    entry, tokenizer_files = _vocabulary(settings, manifests)
    return KnownRecords(kind, layout, parameters, entry, tokenizer_files)


def _vocabulary(
    settings: Settings, manifests: Mapping[Path, Manifest]
) -> tuple[VocabularyEntry | None, TokenizerFiles | None]:
    """The vocabulary in the manifests, or of the flags; UserError if they contradict."""
    entries = {m.vocabulary.digest: (d, m.vocabulary) for d, m in manifests.items()}
    if len(entries) > 1:
        first, second = [directory for directory, _ in entries.values()][:2]
        raise UserError(
            f"--input_file: the records in {first} and {second} were made with different "
            "vocabularies; convert one kind at a time."
        )
    directory, entry = next(iter(entries.values()), (None, None))
    if settings.tokenizer_files is not None:
        given = describe_vocabulary(settings.tokenizer_files.load())
        if entry is not None and given.digest != entry.digest:
            raise UserError(
                f"{settings.tokenizer_files.file} is not the vocabulary of the records in "
                f"{directory}; leave it out or give that one."
            )
        return given, settings.tokenizer_files
    if entry is None:
        return None, None
    copy = directory / entry.file_name
    if not copy.is_file() or digest_of_file(copy) != entry.digest:
        return entry, None
    return entry, entry.tokenizer_files(copy)


def _output_layout(settings: Settings, origin: KnownRecords) -> Layout:
    """The layout of the output; raises UserError for what the format cannot have, or lacks."""
    has_masks = origin.layout.has_masks
    if settings.masking != KEEP:
        has_masks = settings.masking == STATIC
    if settings.format in (GOOGLE, TF2) and not has_masks:
        raise UserError(
            f"--format={settings.format}: such records have masks, which "
            + (
                "--masking=dynamic takes out; leave it out."
                if settings.masking == DYNAMIC
                else f"those in {settings.input_file} have none; give --masking=static to draw "
                "them (by --masked_lm_prob, --max_predictions_per_seq, --do_whole_word_mask and "
                "--random_seed), or another --format."
            )
        )
    takes_out = origin.layout.has_masks and not has_masks
    needs_file = origin.kind == LDDL or takes_out or settings.format == TEXT
    if needs_file and origin.tokenizer_files is None:
        raise UserError(
            "the records' vocabulary is needed, but there is no copy of it next to them; give "
            "--vocab_file or --spm_model_file."
        )
    lengths = dict(origin.layout.lengths)
    if has_masks and not origin.layout.has_masks:
        if origin.vocabulary is None:
            raise UserError(
                "--masking=static needs the vocabulary, but there is no manifest next to the "
                "records; give --vocab_file or --spm_model_file."
            )
        lengths[PREDICTIONS] = settings.max_predictions_per_seq
    elif takes_out:
        del lengths[PREDICTIONS]
    return Layout(PRETRAINING_MASKED if has_masks else PRETRAINING_UNMASKED, lengths)


def _build(
    settings: Settings, files: list[Path], origin: KnownRecords, layout: Layout, directory: Path
) -> Built:
    progress = Progress(CONVERSION_STAGE, 0, "records")
    results = Processes.of(settings.num_workers).map(
        functools.partial(Converter, settings, origin, layout),
        read_batches(files, origin.kind, origin.layout),
        what=CONVERSION_STAGE,
    )
    outputs: dict[str, int | None] = {}
    result = next(results, None)
    total = 0
    for number in range(len(files)):
        stem = f"records-{number:05d}-of-{len(files):05d}"
        with Writer(directory, stem, settings.format, layout) as writer:
            while result is not None and result.file == number:
                writer.write(result.content, result.num_records)
                progress.advance(result.num_records)
                total += result.num_records
                result = next(results, None)
        outputs.update(writer.outputs)
    progress.finish()
    if origin.tokenizer_files is not None:
        name = origin.vocabulary.file_name
        (directory / name).write_bytes(origin.tokenizer_files.content())
        outputs[name] = None
    return Built(outputs, {"records": total})


class Converter:
    """Converts batches; one instance per worker process."""

    def __init__(self, settings: Settings, origin: KnownRecords, layout: Layout):
        self._settings = settings
        self._origin = origin
        self._layout = layout
        files = origin.tokenizer_files
        self._tokenizer = files.load() if files else None
        self._read = BatchReader(origin.kind, origin.layout, self._tokenizer)
        self._masking = None
        if layout.has_masks and not origin.layout.has_masks:
            vocabulary = origin.vocabulary
            self._masking = MaskingSettings(settings, vocabulary.size, vocabulary.special_ids)

    def __call__(self, batch: Batch) -> Converted:
        """The records of a batch in the format."""
        before = self._origin.layout
        examples = self._read(batch)
        vocabulary = self._origin.vocabulary
        require_valid(examples, before, vocabulary.size if vocabulary else None, batch.name_of)
        if self._masking is not None:
            numbers = np.arange(batch.first, batch.first + batch.num_records)
            seed = self._settings.random_seed
            examples = draw_masks(examples, self._masking, seed, batch.file, numbers)
        elif before.has_masks and not self._layout.has_masks:
            sep_id = self._tokenizer.sep_id
            examples = take_masks_out(examples, self._read.starts_word, sep_id)
        content = encode(examples, self._layout, self._settings.format, self._tokenizer)
        return Converted(batch.file, content, batch.num_records)


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.convert_records``."""
    define_settings(
        Settings,
        VocabularyFiles,
        values=values,
        without=("init_checkpoint", "ngram", "favor_shorter_ngram"),
        input_file="Records: comma-separated files, globs and directories.",
        output_dir="Directory for the converted records.",
        max_predictions_per_seq="Maximum number of masks in a sequence, for masks that are drawn "
        "and for LDDL's.",
        do_whole_word_mask="Mask all pieces of a word together, where masks are drawn.",
        vocab_file="WordPiece vocabulary, if there is no copy of it next to the records.",
        do_lower_case="Casing of the vocabulary; by default inferred from its entries.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the command with the settings that the flags give."""
    files = TokenizerFiles.from_flags(from_flags(VocabularyFiles, values))
    chosen = files.with_casing() if files.file else None
    run(from_flags(Settings, values, tokenizer_files=chosen))
