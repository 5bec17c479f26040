"""Records what a stage has finished so far, so that a later call can resume after a kill.

A stage processes items in a fixed order and appends their results to its files. ``.journal.json``
in its partial directory records the number of finished items, the bytes of their results in each
file, and running totals. It is written every half minute, after these bytes have reached the disk.
A later call with equal parameters, inputs, vocabulary and versions truncates the files there, which
undoes everything after, and skips finished items.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.durable.stage import OwnDirectory
from bert_tf.util.console import report, say
from bert_tf.util.errors import RepairableError, UserError
from bert_tf.util.files import Written, sync_file

Item = TypeVar("Item")

JOURNAL_NAME = ".journal.json"
SECONDS_BETWEEN_ENTRIES = 30.0


class Appended(Protocol):
    """Output files that only grow."""

    def sync(self) -> Mapping[Path, Written]:
        """Flushes everything to the disk; returns what each file now contains."""


class AppendedFile(contextlib.AbstractContextManager):
    """A file that is created or continued."""

    def __init__(self, path: Path):
        self._path = path
        self._file = open(path, "ab")  # noqa: SIM115 (closed on exit)

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> None:
        """Appends bytes."""
        self._file.write(content)

    def sync(self) -> dict[Path, Written]:
        """See :class:`Appended`."""
        sync_file(self._file)
        return {self._path: Written(self._file.tell())}


class Journal:
    """The journal of one call of a stage.

    Attributes:
      items: number of finished items.
      input_bytes: input bytes of these items.
      totals: totals over the finished items, by name; the stage adds to them.
      written: the state of each file when this call began, by name in the directory.
    """

    def __init__(self, directory: Path, call: str):
        """Resumes from ``directory`` if a call of the same identity left a journal there.

        Removes everything else in the directory. ``call`` is a hash of everything that determines
        the bytes of the outputs.
        """
        self._directory = directory
        self._call = call
        entry = _read(directory / JOURNAL_NAME, call)
        if entry is None or not _cut_files(directory, entry.written):
            entry = _Entry()
            (directory / JOURNAL_NAME).unlink(missing_ok=True)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        self.items = entry.items
        self.input_bytes = entry.input_bytes
        self.totals = collections.Counter(entry.totals)
        self.written = entry.written
        self._last_entry = time.monotonic()

    @property
    def exists(self) -> bool:
        """Whether a later call would have something to resume from."""
        return (self._directory / JOURNAL_NAME).exists()

    def remaining(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that were unfinished when this call began."""
        return itertools.islice(items, self.items, None)

    def add_item(
        self, counts: Mapping[str, int], *, input_bytes: int, outputs: Iterable[Appended]
    ) -> None:
        """Counts an item whose results are in the outputs, and saves an entry if one is due."""
        self.items += 1
        self.input_bytes += input_bytes
        self.totals.update(counts)
        if time.monotonic() - self._last_entry >= SECONDS_BETWEEN_ENTRIES:
            self.save(outputs)

    def save(self, outputs: Iterable[Appended]) -> None:
        """Saves an entry."""
        written: dict[Path, Written] = {}
        for output in outputs:
            written.update(output.sync())
        files = {
            path.relative_to(self._directory).as_posix(): dataclasses.asdict(part)
            for path, part in written.items()
        }
        content = {
            "call": self._call,
            "items": self.items,
            "input_bytes": self.input_bytes,
            "totals": dict(self.totals),
            "written": files,
        }
        write_sealed_json(self._directory / JOURNAL_NAME, content, durable=True)
        self._last_entry = time.monotonic()


class JournaledDirectory(OwnDirectory):
    """A directory of a stage that keeps a journal, in which its finished work is kept.

    ``build`` gets the journal, too, which tells which output of an earlier call is there.
    """

    @contextlib.contextmanager
    def working(self, directory: Path, identity: str) -> Iterator[tuple[Any, ...]]:
        """Yields a directory with the work of an earlier call's journal, and the journal.

        Both are kept after a kill, a full disk or another failure that can be repaired.
        """
        partial = self.partial(directory)
        journal = Journal(partial, identity)
        try:
            yield partial, journal
        except BaseException as error:
            is_final = isinstance(error, UserError) and not isinstance(error, RepairableError)
            if is_final or not journal.exists:
                shutil.rmtree(partial, ignore_errors=True)
            else:
                report(
                    f"finished work is kept in {partial}; the same command will resume from there"
                )
            raise
        shutil.rmtree(partial, ignore_errors=True)

    def has_work_of_another_call(self, directory: Path, identity: str) -> bool:
        """Whether a call of another identity left a journal to resume from."""
        path = self.partial(directory) / JOURNAL_NAME
        return path.is_file() and _read(path, identity) is None


@dataclasses.dataclass(frozen=True)
class _Entry:
    items: int = 0
    input_bytes: int = 0
    totals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Written] = dataclasses.field(default_factory=dict)


def _read(path: Path, call: str) -> _Entry | None:
    """This call's entry in a journal; None if it is another call's, damaged or missing."""
    if not path.is_file():
        return None
    try:
        advice = "the stage starts over"
        content = read_sealed_json(path, what="journal", advice=advice)
        if content["call"] != call:
            return None
        return _Entry(
            int(content["items"]),
            int(content["input_bytes"]),
            {str(name): int(count) for name, count in content["totals"].items()},
            {str(name): _written(part) for name, part in content["written"].items()},
        )
    except UserError as error:
        say(str(error), stream=sys.stderr)
        return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _written(part: Mapping[str, Any]) -> Written:
    return Written(int(part["bytes"]), int(part["count"]))


def _cut_files(directory: Path, written: Mapping[str, Written]) -> bool:
    """Restores a directory to the state of an entry; False if a file lacks some of its bytes."""
    paths = {directory / name: part.bytes for name, part in written.items()}
    for path, size in paths.items():
        if not path.is_file() or path.stat().st_size < size:
            return False
    for path in sorted(directory.rglob("*"), reverse=True):  # contents before their directory
        if path in paths or path == directory / JOURNAL_NAME:
            continue
        if not path.is_dir():
            path.unlink()
        elif not any(path in kept.parents for kept in paths):
            path.rmdir()
    for path, size in paths.items():
        if path.stat().st_size != size:
            os.truncate(path, size)
    return True
