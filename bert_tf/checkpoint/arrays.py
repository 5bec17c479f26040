"""Files of named arrays: the common interface of weight files."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.files import check_finite

Shape = tuple[int, ...]

_LFS_POINTER = b"version https://git-lfs"


class Entry(NamedTuple):
    """Shape and dtype of a stored array; the dtype is numpy's name or ``bfloat16``."""

    shape: Shape
    dtype: str


class ArrayFile(abc.ABC):
    """Arrays by their names in the file; opening it reads no values.

    Attributes:
      path: the file, or the path of a TensorFlow checkpoint without file suffixes.
      entries: every array in the file.
      is_tensorflow: whether TensorFlow can read the file directly.
    """

    path: str
    entries: Mapping[str, Entry]
    is_tensorflow = False

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Reads an array in its stored dtype; bfloat16 becomes float32.

        Raises UserError if the values cannot be read.
        """

    def read_float32(self, name: str) -> np.ndarray:
        """Reads an array of floating-point numbers as float32; UserError if one is not finite."""
        with np.errstate(over="ignore"):  # beyond float32's range is infinite, too
            values = np.asarray(self.read(name), dtype=np.float32)
        check_finite(values, name, self.path)
        return values


def refuse_lfs_pointer(path: Path) -> None:
    """Raises UserError if the file is only the pointer that git-lfs stores for a large file."""
    with open(path, "rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise UserError(
            f"weights {path}: this is a git-lfs pointer, not the file itself; run git lfs pull, or "
            "download the file."
        )


def truncated(path: object) -> UserError:
    """The error for a file that ends before its last value."""
    return UserError(f"weights {path}: the file is truncated; copy or download it again.")
