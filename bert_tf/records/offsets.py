"""The side file ``X.offsets`` of a record file ``X``: 8 magic bytes, then little-endian uint64."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.files import OFFSETS_SUFFIX, atomic_open

_MAGIC_BYTES = 8
_MAPPED_BYTES = 8 << 20


def offsets_path(path: Path) -> Path:
    """The side file of a record file."""
    return path.with_name(path.name + OFFSETS_SUFFIX)


def write_offsets(path: Path, magic: bytes, values: np.ndarray) -> None:
    """Writes the side file of ``path``; raises UserError if it cannot be written."""
    with atomic_open(offsets_path(path), "wb") as file:
        file.write(magic)
        file.write(values.astype("<u8").tobytes())


class RunningSums:
    """The running sums, from 0, of sizes that are added one array at a time.

    They are kept in a temporary file, since a file may contain hundreds of millions of records.
    """

    def __init__(self, directory: Path):
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed with the object)
        self._sum = 0
        self.add(np.zeros(1, np.int64))

    def add(self, sizes: np.ndarray) -> None:
        """Adds sizes, int64 [N]."""
        sums = self._sum + np.cumsum(sizes)
        self._file.write(sums.astype("<u8").tobytes())
        self._sum = int(sums[-1]) if len(sums) else self._sum

    @property
    def total(self) -> int:
        """The total."""
        return self._sum

    def copy_to(self, file: IO[bytes]) -> None:
        """Writes all sums, starting with 0, as little-endian uint64."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, file)


def write_sums(path: Path, magic: bytes, columns: Sequence[RunningSums]) -> None:
    """Like :func:`write_offsets`, for one or more columns of running sums."""
    with atomic_open(offsets_path(path), "wb") as file:
        file.write(magic)
        for column in columns:
            column.copy_to(file)


def keep_offsets(path: Path, magic: bytes, values: np.ndarray) -> None:
    """Like :func:`write_offsets`, if possible; in a read-only directory, the next run scans."""
    with contextlib.suppress(UserError):
        write_offsets(path, magic, values)


def read_offsets(path: Path, magic: bytes) -> np.ndarray | None:
    """The values in the side file of ``path``, at least one; None if missing or malformed."""
    side_file = offsets_path(path)
    try:
        size = side_file.stat().st_size
        with open(side_file, "rb") as file:
            found = file.read(_MAGIC_BYTES)
    except OSError:
        return None
    if found != magic or size < _MAGIC_BYTES + 8 or size % 8:
        return None
    if size > _MAPPED_BYTES:  # so that ranks on one machine share the memory
        return np.memmap(side_file, "<u8", "r", offset=_MAGIC_BYTES)
    return np.fromfile(side_file, "<u8", offset=_MAGIC_BYTES)
