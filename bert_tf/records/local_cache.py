"""Copies of record files on a host's own disk, kept for later runs in bounded space.

A set of copies is a directory ``records-KEY`` in the cache, named after its originals: their names,
sizes and checksums in manifests or, without a manifest, paths and modification times. So changed
originals get a new set. A set is complete, since it gets its name last. The modification time of
its ``set.json`` is that of its last use, and its ``.in_use`` is locked while a process reads it:
the operating system releases that lock however the process ends. The cache itself is locked while
sets are made and removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from bert_tf.durable.manifest import MANIFEST_NAME, find_manifest
from bert_tf.records.framing import offsets_path
from bert_tf.records.tfrecord import RecordFile
from bert_tf.util.digest import (
    DIGEST_KEY,
    digest_of_blocks,
    digest_of_file,
    digest_of_json,
)
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import DISK_IS_FULL, UserError
from bert_tf.util.files import make_output_dir, read_json_object, sync_file, write_json
from bert_tf.util.progress import Progress

FLAG = "local_cache_dir"

_PREFIX, _PARTIAL = "records-", ".partial-"
_INDEX_NAME, _LOCK_NAME = "set.json", ".in_use"
_BLOCK_BYTES = 1 << 20
_GB = 1e9

# A process reads one set at a time; this is the lock file that marks the set as in use.
_in_use: IO[bytes] | None = None


class NoRoomError(Exception):
    """The copies do not fit; the message explains why."""


@dataclasses.dataclass(frozen=True)
class LocalCopies:
    """Copies of record files.

    Attributes:
      files: the copies, in the order of the originals.
      copied_bytes: how much was copied now; 0 if the copies existed.
    """

    directory: Path
    files: tuple[Path, ...]
    copied_bytes: int


class _Original(NamedTuple):
    """A record file to copy, with its checksum in a manifest; None without one."""

    name: str
    path: Path
    num_bytes: int
    digest: str | None

    @property
    def side_file(self) -> Path | None:
        """Offsets to copy with it."""
        path = offsets_path(self.path)
        return path if path.is_file() else None

    @property
    def all_bytes(self) -> int:
        return self.num_bytes + (self.side_file.stat().st_size if self.side_file else 0)

    def identity(self) -> list[object]:
        if self.digest:
            return [self.path.name, self.num_bytes, self.digest]
        return [str(self.path.resolve()), self.num_bytes, self.path.stat().st_mtime_ns]


def release() -> None:
    """Ends this process's use of copies: others may then take their room."""
    global _in_use
    if _in_use is not None:
        _in_use.close()
        _in_use = None


def local_copies(
    files: Sequence[RecordFile], directory: Path, *, most_bytes: int | None = None
) -> LocalCopies:
    """Copies record files to a cache or finds copies there; locks them for this process.

    Makes room by removing sets that no process uses, the least recently used first. The lock is
    released when the process ends or calls this again.

    Args:
      files: the opened files.
      directory: the cache, which any number of runs may use at the same time.
      most_bytes: size limit for all sets in it; None for the disk's free space.

    Raises NoRoomError if the copies do not fit; UserError if the cache cannot be written, or a file
    is not the one that its manifest describes.
    """
    global _in_use
    make_output_dir(directory, flag=FLAG)
    originals = _originals(files)
    name = _PREFIX + digest_of_json([original.identity() for original in originals])[:16]
    names = [original.name for original in originals]
    release()
    with hold_directory(directory, flag=FLAG, wait=True):
        for rest in directory.glob(f"{_PARTIAL}*"):
            shutil.rmtree(rest, ignore_errors=True)
        copied = 0
        if not _is_complete(directory / name, names):
            shutil.rmtree(directory / name, ignore_errors=True)
            copied = sum(original.all_bytes for original in originals)
            _make_room(directory, copied, most_bytes)
            _copy(originals, directory, name)
        os.utime(directory / name / _INDEX_NAME)
        _in_use = open(directory / name / _LOCK_NAME, "rb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # without locks, sets may be removed while in use
            fcntl.flock(_in_use, fcntl.LOCK_SH)
    paths = tuple(directory / name / file_name for file_name in names)
    return LocalCopies(directory / name, paths, copied)


def _originals(files: Sequence[RecordFile]) -> list[_Original]:
    manifests = {parent: find_manifest(parent) for parent in {file.path.parent for file in files}}
    digests = {
        parent / entry.name: entry.digest
        for parent, manifest in manifests.items()
        for entry in (manifest.outputs if manifest else ())
    }
    return [
        _Original(
            # Files of several directories may have the same name.
            name=f"{number:05d}-{file.path.name}",
            path=file.path,
            num_bytes=file.path.stat().st_size,
            digest=digests.get(file.path),
        )
        for number, file in enumerate(files)
    ]


def _is_complete(directory: Path, names: Sequence[str]) -> bool:
    """Whether a set has all its files, with the right sizes."""
    try:
        listed = read_json_object(directory / _INDEX_NAME, what="index of local copies")["files"]
        return [entry["name"] for entry in listed] == list(names) and all(
            (directory / entry["name"]).stat().st_size == entry["bytes"] for entry in listed
        )
    except (OSError, UserError, KeyError, TypeError):
        return False


def _make_room(directory: Path, needed: int, most_bytes: int | None) -> None:
    """Removes unused sets, least recently used first, until ``needed`` bytes fit."""
    if most_bytes is not None and needed > most_bytes:
        raise NoRoomError(f"they take {_gb(needed)}, more than --local_cache_gb")
    sets = directory.glob(f"{_PREFIX}*")
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in sets}
    kept = sum(sizes.values())
    room = shutil.disk_usage(directory).free
    if most_bytes is not None:
        room = min(room, most_bytes - kept)
    with contextlib.ExitStack() as stack:
        going = []
        for path in sorted(sizes, key=_last_use):
            if room >= needed:
                break
            with contextlib.suppress(OSError):  # another process reads this set, or owns it
                file = stack.enter_context(open(path / _LOCK_NAME, "ab"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                going.append(path)
                room += sizes[path]
        if room < needed:
            raise NoRoomError(
                f"they take {_gb(needed)}, and {directory} has room for {_gb(max(0, room))}, "
                "not counting what other runs use"
            )
        for path in going:
            # Remove the index first, so that a partly removed set does not look complete.
            (path / _INDEX_NAME).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def _last_use(directory: Path) -> float:
    index = directory / _INDEX_NAME
    return index.stat().st_mtime if index.exists() else 0.0


def _copy(originals: Sequence[_Original], directory: Path, name: str) -> None:
    """Makes a set, which gets its name once it is complete."""
    partial = directory / f"{_PARTIAL}{name}"
    total = sum(original.num_bytes for original in originals)
    progress = Progress(f"copying records to {directory}", total / _GB, "GB")
    try:
        partial.mkdir()
        entries = []
        for original in originals:
            digest = _copy_file(original, partial / original.name, progress)
            entries.append(
                {"name": original.name, "bytes": original.num_bytes, DIGEST_KEY: digest,
                 "from": str(original.path)}
            )  # fmt: skip
            if original.side_file:
                shutil.copyfile(original.side_file, offsets_path(partial / original.name))
        (partial / _LOCK_NAME).touch()
        write_json(partial / _INDEX_NAME, {"files": entries})
        os.replace(partial, directory / name)
    except OSError as error:
        if error.errno in DISK_IS_FULL:
            raise NoRoomError(f"{directory} is full ({error.strerror})") from error
        raise UserError(
            f"--{FLAG}: the records cannot be copied to {directory} ({error}); fix the "
            "cause, or choose another directory."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress.finish()


def _copy_file(original: _Original, target: Path, progress: Progress) -> str:
    """Copies a file and compares what was read with what was written; returns its digest."""
    with open(target, "wb") as file:

        def copied() -> Iterator[bytes]:
            with open(original.path, "rb") as source:
                while block := source.read(_BLOCK_BYTES):
                    file.write(block)
                    progress.advance(len(block) / _GB)
                    yield block

        read, num_bytes = digest_of_blocks(copied()), file.tell()
        sync_file(file)
        if hasattr(os, "posix_fadvise"):  # so that the comparison reads the disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if num_bytes != original.num_bytes or original.digest not in (None, read):
        described = f"{MANIFEST_NAME} describes" if original.digest else "it was a moment ago"
        raise UserError(f"{original.path} is not the file that {described}; make or copy it again.")
    if digest_of_file(target) != read:
        raise UserError(
            f"{target} differs from what was written to it; the disk is damaged, choose another "
            f"--{FLAG}."
        )
    return read


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / _GB:,.1f} GB"
