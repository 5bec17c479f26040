"""Reads ``.safetensors``: an eight-byte length, a JSON header, then the arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.checkpoint.arrays import ArrayFile, Entry, refuse_lfs_pointer, truncated
from bert_tf.util.errors import UserError, first_line

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
# What the library says of a file that ends before its header or its last value.
_ENDS_EARLY = ("invalid header length", "incomplete metadata")


class SafetensorsFile(ArrayFile):
    """One file; see ``ArrayFile``."""

    def __init__(self, path: Path) -> None:
        """Reads the header; raises UserError if the file is damaged or truncated."""
        refuse_lfs_pointer(path)
        self.path = str(path)
        with open(path, "rb") as file:
            length, start = file.read(_LENGTH_BYTES), file.read(1)
        if len(length) < _LENGTH_BYTES:
            raise truncated(path)
        if int.from_bytes(length, "little") > _MOST_HEADER_BYTES or start != b"{":
            raise UserError(f"weights {path}: this is not a safetensors file; give another.")
        try:
            with safe_open(path, "np") as opened:
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
                self.entries = {
                    name: Entry(tuple(found.get_shape()), _DTYPES[found.get_dtype()])
                    for name, found in slices.items()
                }
        except (SafetensorError, KeyError) as error:
            if any(said in str(error) for said in _ENDS_EARLY):
                raise truncated(path) from error
            raise UserError(
                f"weights {path}: the header of this safetensors file is damaged "
                f"({first_line(error)}); copy or download it again."
            ) from error

    def read(self, name: str) -> np.ndarray:
        """See the base class."""
        is_known = self.entries[name].dtype != "bfloat16"  # to NumPy
        if not is_known:
            import ml_dtypes  # noqa: F401 (NumPy has the type from there)
        with safe_open(self.path, "np") as opened:
            values = opened.get_tensor(name)
        return values if is_known else values.astype(np.float32)
