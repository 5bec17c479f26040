"""The check of a data directory: its files, its records, and what is unusual."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

import numpy as np
from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import NOT_NEGATIVE, setting
from bert_tf.durable.executor import Executor, Processes
from bert_tf.durable.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    describe_files,
    find_manifest,
)
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import report, say
from bert_tf.util.errors import UserError
from bert_tf.util.files import (
    SIDE_FILE_SUFFIXES,
    check_output_file,
    expand_input_files,
    files_at,
    make_output_dir,
    search_locations,
)
from bert_tf.util.page import write_page
from bert_tf.util.progress import Progress
from data_prep.inspection.hash_sample import HashSample
from data_prep.inspection.judgement import unusual
from data_prep.inspection.origin import Origin, find_origin
from data_prep.inspection.pieces import PieceReader, decode_record, pieces_of
from data_prep.inspection.record_statistics import ALL_LABELS, Statistics
from data_prep.inspection.report import Findings, describe_records, describe_text
from data_prep.inspection.sample_text import ShownRecord, show_record
from data_prep.inspection.text_statistics import TextStatistics, count_text, unusual_text
from data_prep.stages.order import STAGES
from data_prep.stages.settings import InputSettings, ProcessSettings
from data_prep.stages.stage import define_settings
from data_prep.stages.vocabulary_flags import VocabularyFiles

STAGE = "inspect"
REPORT_NAME = "inspection.html"

_RECORD_STAGES = (
    "create_pretraining_data",
    "convert_records",
    "squad_features",
    "glue_features",
    "tagging_features",
)
_TEXT_STAGES = {row.name for row in STAGES.values() if row.writes_text}
_SENTENCE_STAGES = {row.name for row in STAGES.values() if row.writes_sentences}
_TEXT_SUFFIX = ".txt"
_SIDE_FILE_SUFFIXES = (*SIDE_FILE_SUFFIXES, ".npy")

_LARGEST_VOCABULARY = 2**31
_RECORDS_TO_LOOK_AT = 256  # for special ids that nothing names
WORTH_A_POOL = 20_000_000  # bytes; less is read faster than processes start


@dataclasses.dataclass(frozen=True)
class ReportSettings(declared.Settings):
    """What is reported."""

    heading: ClassVar[str] = "Input and output"
    report: Path | None = setting(
        None,
        f"Page to write, with charts and samples; in a directory {REPORT_NAME}.",
        kind=Path,
        parse=lambda given: Path(given) if given else None,
    )
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    num_samples: int = setting(3, "Records to show as text.", bounds=NOT_NEGATIVE)


@dataclasses.dataclass(frozen=True)
class Settings(ProcessSettings, ReportSettings, InputSettings):
    """Settings of the command.

    Attributes:
      tokenizer_files: the vocabulary; by default the copy stored with the records.
    """


@dataclasses.dataclass
class _Found:
    """What has been read so far."""

    files: int = 0
    problems: int = 0
    record_files: list[RecordSet] = dataclasses.field(default_factory=list)
    text_files: list[Path] = dataclasses.field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(map(len, self.record_files))

    def problem(self, sentence: str) -> None:
        report(sentence)
        self.problems += 1


def run(settings: Settings) -> int:
    """Prints the findings on each directory; returns the number of warnings.

    Raises UserError if there are problems, after everything was read and the report was written.
    """
    files = expand_input_files(settings.input_file, flag="input_file")
    page = _page_path(settings.report, files)
    num_bytes = sum(path.stat().st_size for path in files)
    executor = Processes.of(settings.num_workers, at_most=1 if num_bytes < WORTH_A_POOL else None)
    progress = Progress(STAGE, 2 * num_bytes / 1e6, "MB")  # files are hashed, then looked into
    all_findings: list[Findings] = []
    num_files = num_problems = 0
    for (directory, name_glob), is_whole in search_locations(settings.input_file).items():
        manifest = find_manifest(directory)
        found = _Found()
        _check_files(directory, name_glob, manifest, found, progress, is_whole=is_whole)
        findings = [
            *_inspect_records(settings, directory, manifest, found, progress, executor),
            *_inspect_text(directory, manifest, found, progress, executor),
        ]
        compared = f"{manifest.stage}, checked against its" if manifest else "no"
        report(
            f"{directory}: {found.files} files, {found.records:,} records; {compared} "
            f"{MANIFEST_NAME}; {found.problems} problems"
        )
        for one in findings:
            _show(one)
        all_findings += findings
        num_files += found.files
        num_problems += found.problems
    progress.finish()
    if page is not None:
        write_page(page, "Inspection of data", [one.section() for one in all_findings])
        report(f"the report is {page}")
    if num_problems:
        raise UserError(
            f"--input_file={settings.input_file}: found {num_problems} problems in {num_files} "
            "files, see above; make or copy these files again."
        )
    return sum(len(one.warnings) for one in all_findings)


def _page_path(given: Path | None, files: Sequence[Path]) -> Path | None:
    """Where to write the page; raises UserError for a place where it cannot be."""
    if given is None:
        return None
    path = given / REPORT_NAME if given.is_dir() or not given.suffix else given
    check_output_file(path, flag="report")
    if path.parent.resolve() in {file.parent.resolve() for file in files}:
        raise UserError(
            f"--report={given} is among the files to inspect, whose {MANIFEST_NAME} does not list "
            "it; choose another directory."
        )
    make_output_dir(path.parent, flag="report")
    return path


def _show(findings: Findings) -> None:
    for line in findings.lines():
        say(line)
    for sentence in findings.warnings:
        report(f"warning: {sentence}")


def _check_files(
    directory: Path,
    name_glob: str,
    manifest: Manifest | None,
    found: _Found,
    progress: Progress,
    *,
    is_whole: bool,
) -> None:
    """Compares the files of a directory whose names match with the manifest, and opens them."""
    entries = {entry.name: entry for entry in manifest.outputs} if manifest else {}
    found_names = {*entries, *(path.name for path in files_at(directory))} - {MANIFEST_NAME}
    names = sorted(name for name in found_names if fnmatchcase(name, name_glob))
    listed = (name for name in names if name in entries and (directory / name).is_file())
    described = {}
    for file in describe_files(directory / name for name in listed):
        described[file.name] = dataclasses.replace(file, count=entries[file.name].count)
        progress.advance(file.bytes / 1e6)
    for name in names:
        path, entry = directory / name, entries.get(name)
        if not path.is_file():
            found.problem(f"{path} is missing")
            continue
        if entry is None and name.endswith(SIDE_FILE_SUFFIXES):
            continue
        found.files += 1
        if entry is None and manifest and is_whole:
            found.problem(f"{path} is not listed in {MANIFEST_NAME}")
        elif entry and described.get(name) != entry:
            found.problem(f"{path} is not the file that {MANIFEST_NAME} describes")
        _open(path, entry, manifest, found)
        if name not in described:
            progress.advance(path.stat().st_size / 1e6)


def _open(path: Path, entry: FileEntry | None, manifest: Manifest | None, found: _Found) -> None:
    """Adds a file to those whose content is looked at."""
    is_text = path.suffix == _TEXT_SUFFIX
    if is_text and (manifest is None or manifest.stage in _TEXT_STAGES):
        found.text_files.append(path)
    elif manifest is not None and manifest.stage not in _RECORD_STAGES:
        return
    elif path.suffix not in _SIDE_FILE_SUFFIXES:
        try:
            records = RecordSet([path])
        except UserError as error:
            found.problem(str(error))
            return
        found.record_files.append(records)
        if entry and len(records) != entry.count:
            found.problem(f"{path} has {len(records)} records, {MANIFEST_NAME} lists {entry.count}")


def _inspect_records(
    settings: Settings,
    directory: Path,
    manifest: Manifest | None,
    found: _Found,
    progress: Progress,
    executor: Executor,
) -> Iterator[Findings]:
    """Checks the records of each file up to the first invalid one, and counts the others."""
    filled = [records for records in found.record_files if len(records)]
    if not filled:
        return
    origin = find_origin(directory, manifest, settings.tokenizer_files, _first_records(filled))
    entry = manifest.vocabulary if manifest else None
    reader = functools.partial(
        PieceReader, origin.conventions, entry.size if entry else _LARGEST_VOCABULARY
    )
    paths = {records.files[0].path: len(records) for records in filled}
    pieces = (piece for path, number in paths.items() for piece in pieces_of(path, number))
    total, repeated, damaged = Statistics(), HashSample(), set()
    for piece, statistics, problem in executor.map(reader, pieces, what=STAGE):
        if piece.path not in damaged:
            total.add(statistics)
            repeated.add(statistics.hashes)
            if problem is not None:
                damaged.add(piece.path)
                found.problem(problem)
        share = (piece.end - piece.first) / paths[piece.path]
        progress.advance(share * piece.path.stat().st_size / 1e6)
    usable = [records for records in filled if records.files[0].path not in damaged]
    label = _label_of(usable[0]) if usable else None
    calls = manifest.calls if manifest else ()
    yield describe_records(
        str(directory),
        total,
        repeated,
        origin=origin,
        label=label,
        warnings=[
            *unusual(
                total,
                repeated,
                origin.making,
                label=label,
                unknown_id=origin.conventions.special_ids.get("unk"),
            ),
            *(f"of their text, {call.remark}" for call in calls if call.remark),
        ],
        samples=_samples(usable, origin, settings.num_samples),
    )


def _first_records(filled: Sequence[RecordSet]) -> list[dict[str, np.ndarray]]:
    """The first records of the first file that can be read."""
    for records in filled:
        try:
            some = range(min(len(records), _RECORDS_TO_LOOK_AT))
            return [decode_record(records, number)[1] for number in some]
        except UserError:
            continue  # what is wrong with it is found when all records are read
    return []


def _label_of(records: RecordSet) -> str | None:
    example = decode_record(records, 0)[1]
    return next((name for name in ALL_LABELS if name in example), None)


def _samples(usable: Sequence[RecordSet], origin: Origin, number: int) -> list[ShownRecord]:
    """Records from all files, evenly spread."""
    starts = np.cumsum([0, *map(len, usable)])
    chosen = np.unique(np.linspace(0, max(starts[-1] - 1, 0), number).astype(np.int64))
    shown = []
    for index in chosen.tolist() if starts[-1] else ():
        which = int(np.searchsorted(starts, index, side="right")) - 1
        _, example = decode_record(usable[which], index - int(starts[which]))
        shown.append(show_record(example, origin.tokenizer))
    return shown


def _inspect_text(
    directory: Path,
    manifest: Manifest | None,
    found: _Found,
    progress: Progress,
    executor: Executor,
) -> Iterator[Findings]:
    if not found.text_files:
        return
    total, repeated = TextStatistics(), HashSample()
    counted = executor.map(_text_counter, found.text_files, what=STAGE)
    for path, statistics in zip(found.text_files, counted):
        total.add(statistics)
        repeated.add(statistics.hashes)
        progress.advance(path.stat().st_size / 1e6)
    has_sentences = manifest is not None and manifest.stage in _SENTENCE_STAGES
    warnings = list(unusual_text(total, repeated, has_sentences=has_sentences))
    counts = manifest.counts if manifest is not None else {}
    yield describe_text(str(directory), total, repeated, warnings, counts)


def _text_counter():
    return count_text


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.inspect``."""
    define_settings(
        Settings,
        VocabularyFiles,
        values=values,
        without=("init_checkpoint", "do_lower_case"),
        optional=("input_file",),
        input_file="Files to check: comma-separated files, globs and directories; they may also be "
        "given without a flag.",
        vocab_file="WordPiece vocabulary of records that come without a copy of theirs.",
        spm_model_file="A SentencePiece model, instead of --vocab_file.",
    )


def run_from_flags(words: Sequence[str], values: flags.FlagValues) -> int:
    """Runs the command; returns its exit status."""
    given = ",".join([*words[1:], *filter(None, [values.input_file])])
    if not given:
        raise UserError("give a directory or files to inspect; --help lists the flags.")
    vocabulary = TokenizerFiles.from_flags(from_flags(VocabularyFiles, values))
    settings = from_flags(Settings, values, input_file=given, tokenizer_files=vocabulary)
    return 1 if run(settings) else 0
