"""Full disks, and what is in a directory."""

from __future__ import annotations

import contextlib
import resource
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def no_room(most_bytes: int = 0) -> Iterator[None]:
    """As on a full disk, no file of this process may grow beyond ``most_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def content_of(directory: Path) -> dict[Path, bytes]:
    """Every file below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def modes_of(directory: Path) -> dict[str, set[int]]:
    """The permissions of a directory's files, and of itself and the directories in it."""
    found: dict[str, set[int]] = {"file": set(), "directory": set()}
    for path in [directory, *directory.rglob("*")]:
        kind = "directory" if path.is_dir() else "file"
        found[kind].add(stat.S_IMODE(path.stat().st_mode))
    return found
