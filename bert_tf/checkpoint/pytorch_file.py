"""Reads ``pytorch_model.bin`` and ``.pt`` without PyTorch and without executing their code.

Such a file is a pickle, which in general is a program. The reader below supports only the few calls
that a state dict needs; a file that refers to anything else is refused.
"""

from __future__ import annotations

import collections
import contextlib
import io
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple

import numpy as np

from bert_tf.checkpoint.arrays import (
    ArrayFile,
    Entry,
    Shape,
    from_bytes,
    item_size,
    refuse_lfs_pointer,
    truncated,
)
from bert_tf.errors import UserError, first_line

_ZIP_START = b"PK\x03\x04"
# torch/serialization.py: files of PyTorch before 1.6 begin with this pickled number.
_OLD_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_OLD_COUNT_BYTES = 8

_DAMAGE_ERRORS = (
    pickle.UnpicklingError,
    struct.error,
    zlib.error,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}

# Keys under which training programs store the weights among other things; NVIDIA's uses "model".
_WEIGHTS_KEYS = ("model", "state_dict")


class _StorageType(NamedTuple):
    dtype: str


class _Storage(NamedTuple):
    """A contiguous array of numbers in the file."""

    key: str
    dtype: str


class _Tensor(NamedTuple):
    """A view of a storage; offset and strides are in numbers, not bytes."""

    storage: _Storage
    offset: int
    shape: Shape
    strides: tuple[int, ...]


class PytorchFile(ArrayFile):
    """The state dict of one file; see ``ArrayFile``."""

    def __init__(self, path: Path) -> None:
        """Reads names and shapes; raises UserError if the file is not a complete state dict."""
        refuse_lfs_pointer(path)
        self.path = str(path)
        with open(path, "rb") as file, _explain_damage(self.path):
            is_zip = file.read(len(_ZIP_START)) == _ZIP_START
            file.seek(0)
            opened = _open_zip if is_zip else _open_old_file
            content, self._read_storage = opened(file, self.path)
        self._tensors = _state_dict(content, self.path)
        self.entries = {
            name: Entry(tensor.shape, tensor.storage.dtype)
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> np.ndarray:
        """See the base class."""
        tensor = self._tensors[name]
        with _explain_damage(self.path):
            numbers = from_bytes(self._read_storage(tensor.storage.key), tensor.storage.dtype)
        last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides))
        if math.prod(tensor.shape) and last >= len(numbers):
            raise truncated(self.path)
        strides = [stride * numbers.itemsize for stride in tensor.strides]
        view = np.lib.stride_tricks.as_strided(
            numbers[tensor.offset :], tensor.shape, strides, writeable=False
        )
        return np.ascontiguousarray(view).reshape(tensor.shape)

    def share_values(self, first: str, second: str) -> bool:
        """Whether two names stand for the same numbers in the file."""
        return self._tensors[first] == self._tensors[second]


@contextlib.contextmanager
def _explain_damage(path: str) -> Iterator[None]:
    """Turns the errors caused by a truncated or damaged file into a UserError."""
    try:
        yield
    except (zipfile.BadZipFile, EOFError) as error:
        raise truncated(path) from error
    except _DAMAGE_ERRORS as error:
        raise UserError(
            f"weights {path}: this is not a PyTorch file, or it is damaged ({first_line(error)}); "
            "download it again, or give another."
        ) from error


# The pure Python unpickler: the one in C allocates as much memory as a damaged length requests.
class _StateDictReader(pickle._Unpickler):
    """Builds only dictionaries of ``_Tensor``."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        super().__init__(file, encoding="utf-8")
        self._path = path
        # key of each storage -> count and type of its numbers
        self.sizes: dict[str, tuple[int, str]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Called by the base class for every callable that the pickle refers to."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _rebuild_parameter
        raise UserError(
            f"weights {self._path}: the file refers to {module}.{name}, which a plain state dict "
            "never does; save only model.state_dict(), or save it as safetensors."
        )

    def persistent_load(self, identifier: Any) -> _Storage:
        """Called by the base class for data stored outside the pickle."""
        kind, storage_type, key, _, count, *_ = identifier
        if kind != "storage" or not isinstance(storage_type, _StorageType):
            raise pickle.UnpicklingError(f"unknown kind of storage {kind!r}")
        if not isinstance(count, int) or count < 0:
            raise pickle.UnpicklingError(f"a storage of {count!r} numbers")
        self.sizes[str(key)] = (count, storage_type.dtype)
        return _Storage(str(key), storage_type.dtype)


def _rebuild_tensor(storage: _Storage, offset: int, shape: Shape, strides: Shape, *_) -> _Tensor:
    if not isinstance(storage, _Storage) or len(shape) != len(strides):
        raise pickle.UnpicklingError("a tensor without storage")
    for number in (offset, *shape, *strides):
        if not isinstance(number, int) or number < 0:
            raise pickle.UnpicklingError(f"a tensor of shape {shape!r}, strides {strides!r}")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_) -> _Tensor:
    return tensor


def _open_zip(file: BinaryIO, path: str) -> tuple[Any, Callable[[str], bytes]]:
    """The unpickled content, and a function from a storage's key to its bytes."""
    with zipfile.ZipFile(file) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if not pickles:
            raise pickle.UnpicklingError("there is no data.pkl in it")
        reader = _StateDictReader(io.BytesIO(_read_member(archive, pickles[0], path)), path)
        content = reader.load()
        directory = pickles[0][: -len("data.pkl")]
        for key, (count, dtype) in reader.sizes.items():
            size = archive.getinfo(f"{directory}data/{key}").file_size
            if size != count * item_size(dtype):
                raise pickle.UnpicklingError(
                    f"storage {key} has {size} bytes for {count} numbers of type {dtype}"
                )

    def read_storage(key: str) -> bytes:
        with zipfile.ZipFile(path) as archive:
            return _read_member(archive, f"{directory}data/{key}", path)

    return content, read_storage


def _read_member(archive: zipfile.ZipFile, name: str, path: str) -> bytes:
    """A file in the archive; PyTorch does not compress, so an oversized one is refused."""
    size = archive.getinfo(name).file_size
    if size > os.path.getsize(path):
        raise pickle.UnpicklingError(f"{name} has {size} bytes, more than the file itself")
    return archive.read(name)


def _open_old_file(file: BinaryIO, path: str) -> tuple[Any, Callable[[str], bytes]]:
    """Like ``_open_zip``, for files of PyTorch before 1.6: pickles, then the storages."""
    if _StateDictReader(file, path).load() != _OLD_MAGIC_NUMBER:
        raise pickle.UnpicklingError("it begins otherwise")
    for _ in ("protocol version", "byte order and sizes of the machine"):
        _StateDictReader(file, path).load()
    reader = _StateDictReader(file, path)
    content = reader.load()
    position_of: dict[str, tuple[int, int]] = {}
    keys = _StateDictReader(file, path).load()
    position = file.tell()
    for key in keys:
        count, dtype = reader.sizes[key]
        position += _OLD_COUNT_BYTES
        position_of[key] = (position, count * item_size(dtype))
        position += count * item_size(dtype)
    if file.seek(0, io.SEEK_END) < position:
        raise EOFError

    def read_storage(key: str) -> bytes:
        start, length = position_of[key]
        with open(path, "rb") as again:
            again.seek(start)
            return again.read(length)

    return content, read_storage


def _state_dict(content: Any, path: str) -> dict[str, _Tensor]:
    """The tensors by name; raises UserError if ``content`` is not a dictionary of tensors."""
    for key in _WEIGHTS_KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"weights {path}: the file does not contain a dictionary of tensors; give another."
        )
    for name, value in content.items():
        if not isinstance(value, _Tensor):
            raise UserError(
                f"weights {path}: {name!r} is not a tensor but has type {type(value).__name__}; "
                "save only model.state_dict()."
            )
    return dict(content)
