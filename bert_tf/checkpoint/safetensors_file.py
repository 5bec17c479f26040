"""Reads ``.safetensors``: an eight-byte length, a JSON header, then the arrays.

The safetensors library is not used because its numpy interface does not support bfloat16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.checkpoint.arrays import (
    ArrayFile,
    Entry,
    from_bytes,
    item_size,
    refuse_lfs_pointer,
    truncated,
)
from bert_tf.util.errors import UserError, first_line, short_repr

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_LENGTH_BYTES = 8
# The format's own limit; larger lengths are invalid.
_MOST_HEADER_BYTES = 100_000_000
_MOST_BYTES = 1 << 63


class SafetensorsFile(ArrayFile):
    """One file; see ``ArrayFile``."""

    def __init__(self, path: Path) -> None:
        """Reads the header; raises UserError if the file is damaged or truncated."""
        refuse_lfs_pointer(path)
        self.path = str(path)
        size = path.stat().st_size
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            self._start = _LENGTH_BYTES + header_bytes
            if size < _LENGTH_BYTES:
                raise truncated(path)
            if header_bytes > _MOST_HEADER_BYTES:
                raise UserError(f"weights {path}: this is not a safetensors file; give another.")
            content = file.read(header_bytes)
        if not content.startswith(b"{"):
            raise UserError(f"weights {path}: this is not a safetensors file; give another.")
        if len(content) < header_bytes:
            raise truncated(path)
        try:
            header = json.loads(content)
            header.pop("__metadata__", None)
            self.entries = {name: _entry(value) for name, value in header.items()}
            spans = {name: value["data_offsets"] for name, value in header.items()}
            for name, (begin, end) in spans.items():
                if not _are_sizes([begin, end]) or end - begin != _bytes_of(self.entries[name]):
                    raise ValueError(f"{name} does not match its offsets")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"weights {path}: the header of this safetensors file is damaged "
                f"({first_line(error)}); copy or download it again."
            ) from error
        self._offsets = {name: begin for name, (begin, _) in spans.items()}
        if size < self._start + max((end for _, end in spans.values()), default=0):
            raise truncated(path)

    def read(self, name: str) -> np.ndarray:
        """See the base class."""
        entry = self.entries[name]
        with open(self.path, "rb") as file:
            file.seek(self._start + self._offsets[name])
            return from_bytes(file.read(_bytes_of(entry)), entry.dtype).reshape(entry.shape)


def _entry(value: dict[str, Any]) -> Entry:
    shape = value["shape"]
    if not isinstance(shape, list) or not _are_sizes(shape):
        raise ValueError(f"{short_repr(shape)} is not a shape")
    return Entry(tuple(shape), _DTYPES[value["dtype"]])


def _are_sizes(values: Iterable[Any]) -> bool:
    return all(type(value) is int and 0 <= value < _MOST_BYTES for value in values)


def _bytes_of(entry: Entry) -> int:
    return math.prod(entry.shape) * item_size(entry.dtype)
