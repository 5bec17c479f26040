"""Reads PyTorch's weights: ``.safetensors``; ``.bin`` and ``.pt``, in which no code is run."""

from __future__ import annotations

import importlib
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.checkpoint.arrays import ArrayFile, Entry, refuse_lfs_pointer, truncated
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


_ZIP_START = b"PK\x03\x04"
# Files could run code in earlier versions in spite of weights_only (CVE-2025-32434).
_FIRST_SAFE_VERSION = (2, 6)
_FOREIGN = re.compile(r"GLOBAL (\S+) was not an allowed global")
_REASON = re.compile(r"WeightsUnpickler error:\s*(.*)")
_PICKLE_ENDS_EARLY = re.compile("EOF|truncated|Ran out of input")

# Keys under which training programs store the weights among other things; NVIDIA's is "model".
_WEIGHTS_KEYS = ("model", "state_dict")


class PytorchFile(ArrayFile):
    """The state dict of one file; see ``ArrayFile``."""

    def __init__(self, path: Path) -> None:
        """Reads names and shapes; raises UserError if the file is not a complete state dict."""
        refuse_lfs_pointer(path)
        self.path = str(path)
        self._tensors = _state_dict(_load(path), self.path)
        self.entries = {
            name: Entry(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> np.ndarray:
        """See the base class."""
        tensor = self._tensors[name].detach()
        is_known = self.entries[name].dtype != "bfloat16"  # to NumPy
        return np.ascontiguousarray(tensor.numpy() if is_known else tensor.float().numpy())

    def share_values(self, first: str, second: str) -> bool:
        """Whether two names refer to the same numbers in the file."""
        one, other = self._tensors[first], self._tensors[second]
        return one.is_set_to(other)


def _load(path: Path) -> Any:
    """The unpickled content; raises UserError if PyTorch is missing or the file is damaged."""
    torch = _torch(path)
    with open(path, "rb") as file:
        is_zip = file.read(len(_ZIP_START)) == _ZIP_START
    try:
        if is_zip:
            _check_archive(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can cause any
        raise _explained(error, path) from error


def _torch(path: Path) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            f"weights {path}: this kind of file is read with PyTorch, which is not installed; run "
            "pip install torch, or give the model as safetensors."
        ) from error
    version = str(torch.__version__)
    if tuple(int(number) for number in version.split(".")[:2]) < _FIRST_SAFE_VERSION:
        raise UserError(
            f"weights {path}: torch {version} may run code that such a file contains; install "
            "torch 2.6 or later, or give the model as safetensors."
        )
    return torch


def _check_archive(path: Path) -> None:
    """Checks what PyTorch does not: checksums, and that nothing unpacks to more than the file."""
    if not zipfile.is_zipfile(path):  # its directory is at its end
        raise truncated(path)
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{short_repr(member.filename)} is compressed")
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {short_repr(damaged)} differs")


def _explained(error: Exception, path: Path) -> UserError:
    text = str(error)
    foreign = _FOREIGN.search(text)
    if foreign is not None:
        return UserError(
            f"weights {path}: the file refers to {short_repr(foreign[1])}, which a plain state "
            "dict never does; save only model.state_dict(), or save it as safetensors."
        )
    if isinstance(error, EOFError) or _PICKLE_ENDS_EARLY.search(text):
        return truncated(path)
    reason = _REASON.search(text)
    what = short_repr(reason[1]) if reason else first_line(error)
    return UserError(
        f"weights {path}: this is not a PyTorch file, or it is damaged ({what}); download it "
        "again, or give another."
    )


def _state_dict(content: Any, path: str) -> dict[str, Any]:
    """The tensors by name; raises UserError if ``content`` is not a dictionary of tensors."""
    for key in _WEIGHTS_KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"weights {path}: the file does not contain a dictionary of tensors; give another."
        )
    for name, value in content.items():
        if not isinstance(name, str):
            raise UserError(
                f"weights {path}: its values have numbers for names, such as {short_repr(name)}; "
                "save only model.state_dict()."
            )
        if not hasattr(value, "untyped_storage"):
            raise UserError(
                f"weights {path}: {short_repr(name)} is not a tensor but has type "
                f"{type(value).__name__}; save only model.state_dict()."
            )
    return dict(content)
