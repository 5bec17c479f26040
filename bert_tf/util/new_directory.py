"""Directories that appear under their names once they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_directory(target: Path, inside: Path) -> Iterator[Path]:
    """Yields where to make a directory, which is renamed to ``target`` when the block succeeds.

    It is in ``inside``, a directory on the same disk that the caller holds. An exception leaves
    nothing behind; what a killed process leaves there, the next holder removes.
    """
    temporary = inside / f".{target.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
