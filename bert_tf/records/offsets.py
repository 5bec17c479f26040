"""The side file ``X.offsets`` of a record file ``X``: 8 magic bytes, then little-endian uint64."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.files import OFFSETS_SUFFIX, atomic_open

_MAGIC_BYTES = 8
_MAPPED_BYTES = 8 << 20


def offsets_path(path: Path) -> Path:
    """The side file of a record file."""
    return path.with_name(path.name + OFFSETS_SUFFIX)


def write_offsets(path: Path, magic: bytes, *columns: np.ndarray) -> None:
    """Writes the side file of ``path``, one column after the other; UserError if it cannot be."""
    with atomic_open(offsets_path(path), "wb") as file:
        file.write(magic)
        file.writelines(values.astype("<u8").tobytes() for values in columns)


def running_sums(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """The running sums, from 0, of N sizes: int64 [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def keep_offsets(path: Path, magic: bytes, *columns: np.ndarray) -> None:
    """Like :func:`write_offsets`, if possible; in a read-only directory, the next run scans."""
    with contextlib.suppress(UserError):
        write_offsets(path, magic, *columns)


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
