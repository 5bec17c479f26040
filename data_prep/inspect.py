"""Reads a data directory completely and reports what is wrong with it.

    python -m data_prep.inspect --input_file=data/records/train

Every file that a ``manifest.json`` lists is checked for presence, size and hash. Every pre-training
or SQuAD record is read, and its checksums, layout and value ranges are checked. Files without a
manifest can be given as well; then only their records are checked.

Training itself checks presence and sizes at its start, and each record that it reads.

Memory: about 70 MB.
"""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from absl import flags

from bert_tf.command_line import flag_group
from bert_tf.errors import UserError
from bert_tf.files import SIDE_FILE_SUFFIXES, expand_input_files, files_at, search_locations
from bert_tf.progress import Progress
from bert_tf.records.layouts import (
    PRETRAINING_MASKED,
    PRETRAINING_UNMASKED,
    SEGMENTS,
    SQUAD_PREDICTION,
    SQUAD_TRAINING,
    VOCABULARY,
    RecordSpec,
    decode_example,
    with_standard_names,
)
from bert_tf.records.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    describe_file,
    find_manifest,
)
from bert_tf.records.stage import report
from bert_tf.records.tfrecord import RecordSet
from data_prep.stage import run_main, settings_from_flags

STAGE = "inspect"

_RECORD_STAGES = ("create_pretraining_data", "convert_records", "squad_features")
_SPECS = (PRETRAINING_UNMASKED, PRETRAINING_MASKED, SQUAD_TRAINING, SQUAD_PREDICTION)
_SIDE_FILE_SUFFIXES = (*SIDE_FILE_SUFFIXES, ".npy")
_Layout = tuple[RecordSpec, dict[str, int]]

_NUM_SEGMENTS = 2
_LARGEST_VOCABULARY = 2**31
_RECORDS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the command.

    Attributes:
      input_file: comma-separated files, globs and directories.
    """

    input_file: str


@dataclasses.dataclass
class _Found:
    """Counts of what has been read so far."""

    files: int = 0
    records: int = 0
    problems: int = 0

    def problem(self, sentence: str) -> None:
        report(sentence)
        self.problems += 1


def run(settings: Settings) -> None:
    """Prints a line for each directory and problem; raises UserError if there are problems."""
    files = expand_input_files(settings.input_file, flag="input_file")
    progress = Progress(STAGE, sum(path.stat().st_size for path in files) / 1e6, "MB")
    total = _Found()
    for (directory, name_glob), is_whole in search_locations(settings.input_file).items():
        manifest = find_manifest(directory)
        found = _Found()
        _inspect(directory, name_glob, manifest, found, progress, is_whole=is_whole)
        compared = f"{manifest.stage}, checked against its" if manifest else "no"
        report(
            f"{directory}: {found.files} files, {found.records:,} records; {compared} "
            f"{MANIFEST_NAME}; {found.problems} problems"
        )
        total.files += found.files
        total.problems += found.problems
    progress.finish()
    if total.problems:
        raise UserError(
            f"--input_file={settings.input_file}: found {total.problems} problems in {total.files} "
            "files, see above; make or copy these files again."
        )


def _inspect(
    directory: Path,
    name_glob: str,
    manifest: Manifest | None,
    found: _Found,
    progress: Progress,
    *,
    is_whole: bool,
) -> None:
    """Checks the files of a directory whose names match."""
    entries = {entry.name: entry for entry in manifest.outputs} if manifest else {}
    names = {*entries, *(path.name for path in files_at(directory))} - {MANIFEST_NAME}
    for name in sorted(name for name in names if fnmatchcase(name, name_glob)):
        path, entry = directory / name, entries.get(name)
        if not path.is_file():
            found.problem(f"{path} is missing")
            continue
        if entry is None and name.endswith(SIDE_FILE_SUFFIXES):
            continue
        found.files += 1
        if entry is None and manifest and is_whole:
            found.problem(f"{path} is not listed in {MANIFEST_NAME}")
        elif entry and describe_file(path) != dataclasses.replace(entry, count=None):
            found.problem(f"{path} is not the file that {MANIFEST_NAME} describes")
        is_records = manifest is None or manifest.stage in _RECORD_STAGES
        if is_records and Path(name).suffix not in _SIDE_FILE_SUFFIXES:
            _inspect_records(path, entry, manifest, found)
        progress.advance(path.stat().st_size / 1e6)


def _inspect_records(
    path: Path, entry: FileEntry | None, manifest: Manifest | None, found: _Found
) -> None:
    """Checks the records of a file up to the first invalid one."""
    vocabulary = manifest.vocabulary if manifest else None
    vocab_size = vocabulary.size if vocabulary else _LARGEST_VOCABULARY
    try:
        records = RecordSet([path])
        found.records += len(records)
        if entry and len(records) != entry.count:
            found.problem(f"{path} has {len(records)} records, {MANIFEST_NAME} lists {entry.count}")
        layout = _decode(records, 0)[0] if len(records) else None
        for first in range(0, len(records), _RECORDS_AT_ONCE):
            numbers = range(first, min(first + _RECORDS_AT_ONCE, len(records)))
            _check_records(records, numbers, layout, vocab_size=vocab_size)
    except UserError as error:
        found.problem(str(error))


def _check_records(records: RecordSet, numbers: range, layout: _Layout, *, vocab_size: int) -> None:
    """Raises UserError for a record that is damaged, has another layout, or is out of range."""
    spec, lengths = layout
    rows = []
    for number in numbers:
        row_layout, row = _decode(records, number)
        if row_layout != layout:
            raise UserError(f"{_name_of(records, number)} differs from record 0 in layout")
        rows.append(row)
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    sizes = {**lengths, VOCABULARY: vocab_size, SEGMENTS: _NUM_SEGMENTS}
    problem = spec.out_of_range(batch, sizes)
    if problem is not None:
        row, what = problem
        raise UserError(f"{_name_of(records, numbers[row])} cannot be used: {what}")


def _decode(records: RecordSet, number: int) -> tuple[_Layout, dict[str, np.ndarray]]:
    """The layout of a record with its lengths, and its features."""
    [record] = records.read([number])
    try:
        example = with_standard_names(decode_example(record))
        spec = next((spec for spec in _SPECS if spec.matches(example)), PRETRAINING_MASKED)
        return (spec, spec.lengths_of(example)), {f.name: example[f.name] for f in spec.features}
    except ValueError as error:
        raise UserError(
            f"{_name_of(records, number)} is not a record for pre-training or SQuAD ({error})"
        ) from error


def _name_of(records: RecordSet, number: int) -> str:
    return f"record {number} of {records.files[0].path}"


@flag_group("Input and output")
def define_flags() -> None:
    """Defines the flags of ``python -m data_prep.inspect``."""
    flags.DEFINE_string(
        "input_file", None, "Files to check: comma-separated files, globs and directories."
    )
    flags.mark_flag_as_required("input_file")


def main() -> None:
    """Runs the command from its flags."""
    run_main(define_flags, lambda: run(settings_from_flags(Settings)))


if __name__ == "__main__":
    main()
