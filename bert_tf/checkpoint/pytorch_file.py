"""Reads ``pytorch_model.bin`` and ``.pt`` without PyTorch and without executing their code.

Such a file is a pickle, which can contain arbitrary code. This reader supports only the few calls
and instructions that a state dict needs, and rejects files with any others. Time and memory are
proportional to the size of the pickle: objects that it refers to repeatedly are never copied,
hashed or printed as a whole.
"""

from __future__ import annotations

import collections
import contextlib
import io
import math
import os
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable, ClassVar, NamedTuple

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
from bert_tf.util.errors import UserError, first_line, short_repr

_ZIP_START = b"PK\x03\x04"
# torch/serialization.py: files written by PyTorch before 1.6 begin with this pickled number.
_OLD_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_OLD_COUNT_BYTES = 8

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
# What torch.save writes with any protocol from 2 on. Excludes byte arrays, which allocate their
# declared size before it is read, and sets, which hash their elements.
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.BINPERSID),
)
_MOST_ARGUMENTS = 7  # _rebuild_tensor_v2 in torch/_utils.py, with metadata
_MOST_DIMENSIONS = 32  # NumPy's limit before 2.0

# Keys under which training programs store the weights among other things; NVIDIA's is "model".
_WEIGHTS_KEYS = ("model", "state_dict")


class _StorageType(NamedTuple):
    dtype: str


class _Storage(NamedTuple):
    """A contiguous array of numbers in the file."""

    key: str
    dtype: str
    size: int


class _Tensor(NamedTuple):
    """A view of a storage; offset and strides count numbers, not bytes."""

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
        storage, offset, shape, strides = self._tensors[name]
        with _explain_damage(self.path):
            if math.prod(shape) > storage.size:
                raise ValueError(f"{short_repr(name)} is larger than its storage")
            numbers = from_bytes(self._read_storage(storage.key), storage.dtype)
            if len(numbers) < storage.size:
                raise EOFError
            view = np.lib.stride_tricks.as_strided(
                numbers[offset:], shape, [s * numbers.itemsize for s in strides], writeable=False
            )
            return np.ascontiguousarray(view).reshape(shape)

    def share_values(self, first: str, second: str) -> bool:
        """Whether two names refer to the same numbers in the file."""
        return self._tensors[first] == self._tensors[second]


@contextlib.contextmanager
def _explain_damage(path: str) -> Iterator[None]:
    """Converts errors caused by a truncated or damaged file to a UserError."""
    try:
        yield
    except UserError:
        raise
    except (zipfile.BadZipFile, EOFError) as error:
        raise truncated(path) from error
    except Exception as error:  # a damaged pickle can cause any
        raise UserError(
            f"weights {path}: this is not a PyTorch file, or it is damaged ({first_line(error)}); "
            "download it again, or give another."
        ) from error


def _refuse(_: pickle._Unpickler) -> None:
    raise pickle.UnpicklingError("its pickle has instructions that no state dict needs")


# The pure Python unpickler: the C one allocates as much memory as a damaged length requests.
class _StateDictReader(pickle._Unpickler):
    """Builds only dictionaries of ``_Tensor`` whose keys are strings or integers."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        super().__init__(file, encoding="utf-8")
        self._path = path
        self.storages: dict[str, _Storage] = {}

    # The base class's, which typeshed does not list.
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        """Called by the base class for every callable that the pickle references."""
        if (module, name) == ("collections", "OrderedDict"):
            return _dictionary
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _rebuild_parameter
        raise UserError(
            f"weights {self._path}: the file refers to {short_repr(f'{module}.{name}')}, which a "
            "plain state dict never does; save only model.state_dict(), or save it as safetensors."
        )

    def persistent_load(self, identifier: Any) -> _Storage:
        """Called by the base class for data stored outside the pickle."""
        _require_arguments(identifier)
        kind, storage_type, key, _, count, *_ = identifier
        if kind != "storage" or not isinstance(storage_type, _StorageType):
            raise pickle.UnpicklingError(f"unknown kind of storage {short_repr(kind)}")
        if not isinstance(key, (str, int)) or not isinstance(count, int) or count < 0:
            raise pickle.UnpicklingError(
                f"storage {short_repr(key)} of {short_repr(count)} numbers"
            )
        storage = _Storage(str(key), storage_type.dtype, count)
        if self.storages.setdefault(storage.key, storage) != storage:
            raise pickle.UnpicklingError(f"storage {short_repr(key)} has two types or sizes")
        return storage

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        _require_arguments(arguments)
        self.stack[-1] = self.stack[-1](*arguments)

    def _build(self) -> None:
        """Drops an object's attributes, which for a state dict contain its ``_metadata``."""
        self.stack.pop()

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set(self.stack[-1], [(key, value)])

    def _set_items(self) -> None:
        items = self.pop_mark()
        _set(self.stack[-1], zip(items[::2], items[1::2]))

    dispatch: ClassVar[dict[int, Callable[..., None]]] = collections.defaultdict(
        lambda: _refuse,
        {
            **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES},
            pickle.REDUCE[0]: _reduce,
            pickle.BUILD[0]: _build,
            pickle.SETITEM[0]: _set_item,
            pickle.SETITEMS[0]: _set_items,
        },
    )


def _require_arguments(arguments: Any) -> None:
    if not isinstance(arguments, tuple) or len(arguments) > _MOST_ARGUMENTS:
        raise pickle.UnpicklingError(f"{short_repr(arguments)} in place of the arguments of a call")


def _set(target: Any, items: Iterable[tuple[Any, Any]]) -> None:
    if not isinstance(target, dict):
        raise pickle.UnpicklingError("items outside of a dictionary")
    for key, value in items:
        if not isinstance(key, (str, int)):
            raise pickle.UnpicklingError(
                f"{short_repr(key)} is a key, which must be text or an integer"
            )
        target[key] = value


def _dictionary(pairs: Any = ()) -> dict[Any, Any]:
    """Builds an OrderedDict; Python 2 passes its items as a list.

    Empties the list, since copying it in every call that refers to it could take forever.
    """
    made: dict[Any, Any] = {}
    if pairs:
        _set(made, pairs)
        pairs.clear()
    return made


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Shape, strides: Shape, *_: Any
) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without storage")
    if not (
        isinstance(shape, tuple)
        and isinstance(strides, tuple)
        and len(shape) == len(strides) <= _MOST_DIMENSIONS
        and all(isinstance(number, int) and number >= 0 for number in (offset, *shape, *strides))
    ):
        raise pickle.UnpicklingError(
            f"a tensor of shape {short_repr(shape)}, strides {short_repr(strides)}"
        )
    # An empty tensor's strides are arbitrary, and so is the stride of a dimension of size one.
    steps = tuple(s if n > 1 and 0 not in shape else 0 for n, s in zip(shape, strides))
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps))
    if 0 not in shape and last >= storage.size:
        raise pickle.UnpicklingError(
            f"a tensor of shape {short_repr(shape)} ends outside of its storage of "
            f"{short_repr(storage.size)} numbers"
        )
    return _Tensor(storage, offset, shape, steps)


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


def _open_zip(file: BinaryIO, path: str) -> tuple[Any, Callable[[str], bytes]]:
    """Returns the unpickled content and a function from a storage's key to its bytes."""
    with zipfile.ZipFile(file) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if not pickles:
            raise pickle.UnpicklingError("there is no data.pkl in it")
        reader = _StateDictReader(io.BytesIO(_read_member(archive, pickles[0], path)), path)
        content = reader.load()
        directory = pickles[0][: -len("data.pkl")]
        for key, dtype, count in reader.storages.values():
            size = archive.getinfo(f"{directory}data/{key}").file_size
            if size != count * item_size(dtype):
                raise pickle.UnpicklingError(
                    f"storage {key} has {size} bytes for {short_repr(count)} numbers of type "
                    f"{dtype}"
                )

    def read_storage(key: str) -> bytes:
        with zipfile.ZipFile(path) as archive:
            return _read_member(archive, f"{directory}data/{key}", path)

    return content, read_storage


def _read_member(archive: zipfile.ZipFile, name: str, path: str) -> bytes:
    """A file in the archive; PyTorch does not compress, so compressed files are rejected."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise pickle.UnpicklingError(f"{name} is compressed")
    if member.file_size > os.path.getsize(path):
        raise pickle.UnpicklingError(
            f"{name} has {member.file_size} bytes, more than the file itself"
        )
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
        if not isinstance(key, str):
            raise pickle.UnpicklingError(f"{short_repr(key)} is not the name of a storage")
        length = reader.storages[key].size * item_size(reader.storages[key].dtype)
        position += _OLD_COUNT_BYTES
        position_of[key] = (position, length)
        position += length
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
        if not isinstance(name, str):
            raise UserError(
                f"weights {path}: its values have numbers for names, such as {short_repr(name)}; "
                "save only model.state_dict()."
            )
        if not isinstance(value, _Tensor):
            raise UserError(
                f"weights {path}: {short_repr(name)} is not a tensor but has type "
                f"{type(value).__name__}; save only model.state_dict()."
            )
    return dict(content)
