"""Building a data directory once: skipping, atomic installation, one writer at a time.

A stage writes into ``output_dir/.partial``. Only when it is complete are the files of an earlier
run removed, the new ones moved into place and ``manifest.json`` written, in that order, so a
directory with a manifest is always complete. ``.stale.json`` lists the files that are being
replaced while that goes on, so that a run killed there leaves nothing behind for good.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from bert_tf.console import say
from bert_tf.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    VocabularyEntry,
    describe_file,
    is_up_to_date,
    readable_manifest,
    require_output_names,
    write_manifest,
)
from bert_tf.directory_lock import hold_directory
from bert_tf.errors import UserError
from bert_tf.files import PathLike, explained_writing, make_output_dir, read_json, write_json

_PARTIAL_NAME = ".partial"
_STALE_NAME = ".stale.json"


@dataclasses.dataclass(frozen=True)
class Built:
    """What a stage has written.

    Attributes:
      outputs: name of each file, and the number of units (documents, records) in it or None.
      counts: totals for the manifest.
    """

    outputs: Mapping[str, int | None]
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


def run_stage(
    stage: str,
    output_dir: PathLike,
    *,
    parameters: Mapping[str, Any],
    inputs: Sequence[Path],
    build: Callable[[Path], Built],
    vocabulary: VocabularyEntry | None = None,
) -> Path:
    """Fills ``output_dir`` by ``build(directory)``, unless its manifest says that it is done.

    Args:
      stage: name of the stage, for the manifest and for messages.
      output_dir: belongs to this stage alone; files that the stage did not write stay.
      parameters: JSON values that, with the inputs and the vocabulary, decide every output byte.
      inputs: files, in the order in which they are read.
      build: writes the outputs into the empty directory that it is given.
      vocabulary: of the ids in the outputs, None where there are none.

    Returns: ``output_dir``.

    Raises:
      UserError: the directory cannot be written, is in use, holds the output of another stage, or
        its manifest lists what is not a file of the directory.
    """
    directory = make_output_dir(output_dir, flag="output_dir")
    entries = tuple(describe_file(path) for path in inputs)
    # Without the lock: readers of a finished directory need not wait for each other.
    if is_up_to_date(
        directory, stage=stage, parameters=parameters, inputs=entries, vocabulary=vocabulary
    ):
        report(f"{stage}: {directory} is up to date, skipped")
        return directory
    with explained_writing(directory), hold_directory(directory, flag="output_dir"):
        _refuse_other_stage(directory, stage)
        old = _files_of_earlier_runs(directory)
        partial = directory / _PARTIAL_NAME
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            built = build(partial)
            outputs = tuple(
                describe_file(partial / name, count=count) for name, count in built.outputs.items()
            )
            _install(
                Manifest(stage, parameters, entries, outputs, built.counts, vocabulary),
                old=old,
                partial=partial,
                directory=directory,
            )
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return directory


def remove_outputs(stage: str, output_dir: PathLike) -> None:
    """Removes what an earlier run of the stage left in a directory, if there is anything."""
    directory = Path(output_dir)
    manifest = readable_manifest(directory)
    if manifest is not None and manifest.stage != stage:
        return
    if not _files_of_earlier_runs(directory):
        return
    with hold_directory(directory, flag="output_dir"):
        names = _files_of_earlier_runs(directory)
        write_json(directory / _STALE_NAME, sorted(names))
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        for name in names:
            (directory / name).unlink(missing_ok=True)
        (directory / _STALE_NAME).unlink()


def report(line: str) -> None:
    """Prints one line for the user, on the stream of the progress lines."""
    say(line, stream=sys.stderr)


def _refuse_other_stage(directory: Path, stage: str) -> None:
    manifest = readable_manifest(directory)
    if manifest is not None and manifest.stage != stage:
        raise UserError(
            f"--output_dir: {directory} holds the output of {manifest.stage}; "
            f"choose another directory for {stage}."
        )


def _install(manifest: Manifest, *, old: set[str], partial: Path, directory: Path) -> None:
    """Replaces what an earlier run left in ``directory`` by the files in ``partial``."""
    new = {entry.name for entry in manifest.outputs}
    for name in sorted(new - old):
        if (directory / name).exists():
            raise UserError(
                f"--output_dir: {directory / name} exists and was not made by {manifest.stage}; "
                "move it away or choose another directory."
            )
    write_json(directory / _STALE_NAME, sorted(old | new))
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    for name in old - new:
        (directory / name).unlink(missing_ok=True)
    for name in sorted(new):
        os.replace(partial / name, directory / name)
    write_manifest(directory, manifest)
    (directory / _STALE_NAME).unlink()


def _files_of_earlier_runs(directory: Path) -> set[str]:
    """Names of the files that may be replaced or removed."""
    manifest = readable_manifest(directory)
    names = {entry.name for entry in manifest.outputs} if manifest else set()
    stale = directory / _STALE_NAME
    if stale.exists():
        listed = read_json(stale, what="list of replaced files")
        if not isinstance(listed, list):
            raise UserError(f"{stale} is not a list of file names; delete it and try again.")
        require_output_names(listed, listed_in=stale)
        names.update(listed)
    for name in names:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            raise UserError(
                f"--output_dir: {path} is a directory, but is listed as a file that an earlier run "
                "wrote; move it away."
            )
    return names
