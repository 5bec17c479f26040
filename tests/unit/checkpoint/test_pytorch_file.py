"""Pickles that are made to take time or memory, or to cause an unexpected error."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import tracemalloc
import zipfile
from typing import NamedTuple

import numpy as np
import pytest
import torch

from bert_tf.checkpoint.pytorch_file import PytorchFile
from bert_tf.util.errors import UserError

MOST_BYTES = 8 << 20


class Storage(NamedTuple):
    """Float32 numbers outside of the pickle."""

    key: object = "0"
    count: object = 12


class Call:
    """A call of a function, with any arguments."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


class Identified(NamedTuple):
    """A reference to what is outside of the pickle."""

    identifier: object


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, Storage):
            return "storage", torch.FloatStorage, obj.key, "cpu", obj.count
        return obj.identifier if isinstance(obj, Identified) else None


def tensor(shape=(3, 4), strides=(4, 1), *, offset=0, storage=None, others=()):
    storage = storage or Storage()
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, *others)


def pickled(value, protocol=2):
    content = io.BytesIO()
    _Pickler(content, protocol).dump(value)
    return content.getvalue()


def zip_of(data_pkl, storage=bytes(48), compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/data/0", storage)
    return content.getvalue()


@pytest.fixture(name="read")
def read_pytorch_file(tmp_path):
    """Reads all tensors of a file with the given content."""

    def read(content):
        path = tmp_path / "pytorch_model.bin"
        path.write_bytes(content)
        file = PytorchFile(path)
        return {name: file.read(name) for name in file.entries}

    return read


@pytest.fixture(name="refusal")
def refusal_of_a_file(read):
    """The message about a file, which takes little memory."""

    def refusal(content):
        tracemalloc.start()
        try:
            with pytest.raises(UserError) as error:
                read(content)
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
        finally:
            tracemalloc.stop()
        message = str(error.value)
        assert len(message) < 500
        assert "\n" not in message
        return message

    return refusal


def nested(depth=40):
    """Tuples whose elements are the same one, so that there are 2 ** depth paths."""
    value = ()
    for _ in range(depth):
        value = (value, value)
    return value


def by_hand(*instructions):
    return b"\x80\x02" + b"".join(instructions) + b"."


NESTED = pickled(nested())[2:-1]


def many_copies():
    """A dictionary of 2,000 items, made 2,000 times from the same list: 4 million entries."""
    pairs = [(f"{number}", ()) for number in range(2_000)]
    return [Call(collections.OrderedDict, pairs) for _ in range(2_000)]


# An ordered dictionary whose items() is a number.
CHANGED_METHOD = by_hand(b"ccollections\nOrderedDict\n)R", b"N}X\x05\0\0\0itemsK\x01s\x86b")
NOT_NEEDED = "instructions that no state dict needs"
KEY = "a key, which must be text or an integer"
OUTSIDE = "ends outside of its storage of 12 numbers"
HOSTILE = {
    "a place in the memo": (by_hand(b"}r", struct.pack("<I", 1 << 24)), "dictionary of tensors"),
    "bytes that the file does not have": (
        by_hand(b"\x96", struct.pack("<Q", 3 << 30)),
        NOT_NEEDED,
    ),
    "a set": (pickled({"a": {1}}, protocol=4), NOT_NEEDED),
    "a function": (pickled({"a": print}), "refers to '__builtin__.print', which"),
    "a long name of a function": (by_hand(b"c", b"a" * 10**6, b"\nb\n"), "refers to 'aaaa"),
    "a nested key": (by_hand(b"}", NESTED, b"K\1s"), KEY),
    "nested keys": (by_hand(b"}(", NESTED, b"K\1u"), KEY),
    "nested keys of Python 2": (pickled(Call(collections.OrderedDict, [(nested(), 1)])), KEY),
    "a nested name": (pickled({3: tensor()}), "have numbers for names, such as 3;"),
    "a nested identifier": (pickled(Identified(nested())), "expected at least 5"),
    "a nested kind": (pickled(Identified((nested(), 1, 2, 3, 4))), "unknown kind of storage"),
    "a nested key of a storage": (pickled(Storage(key=nested())), "of 12 numbers"),
    "a nested number": (pickled(Storage(count=nested())), "storage '0' of ((("),
    "a nested shape": (pickled(tensor(nested())), "a tensor of shape ((("),
    "many dimensions": (pickled(tensor((1,) * 33, (1,) * 33)), "a tensor of shape (1, 1"),
    "many arguments": (pickled(tensor(others=(None,) * 9)), "in place of the arguments of a call"),
    "many copies": (pickled(many_copies()), "dictionary of tensors"),
    "a changed method": (CHANGED_METHOD, "does not contain a dictionary of tensors"),
    "items of a list": (by_hand(b"]K\0K\1s"), "items outside of a dictionary"),
    "large strides": (pickled({"a": tensor(strides=(1 << 70, 1))}), OUTSIDE),
    "a large shape": (pickled({"a": tensor((1 << 40, 4))}), OUTSIDE),
    "a large offset": (pickled({"a": tensor(offset=1 << 70)}), OUTSIDE),
    "a large shape without strides": (
        pickled({"a": tensor((1 << 40,), (0,))}),
        "'a' is larger than its storage",
    ),
    "two sizes of a storage": (
        pickled([Storage(), Storage(count=3)]),
        "storage '0' has two types or sizes",
    ),
    "a long message": (pickled({"a" * 10**6: 3}), "is not a tensor but has type int"),
}


@pytest.mark.parametrize(("data_pkl", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_pickles_are_refused_at_once(refusal, data_pkl, words):
    assert words in refusal(zip_of(data_pkl))


def test_a_file_of_twelve_bytes(refusal):
    content = by_hand(b"\x96", struct.pack("<Q", 3 << 30))
    assert len(content) == 12
    assert NOT_NEEDED in refusal(content)


def test_nested_names_of_storages_before_pytorch_1_6(refusal):
    parts = (0x1950A86A20F9469CFC6C, 1001, {}, {"a": tensor()}, [nested()])
    assert "is not the name of a storage" in refusal(b"".join(map(pickled, parts)))


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("declared", [None, 10])
def test_compressed_members_do_not_fill_the_memory(refusal, compression, declared):
    """Whatever the size that the archive declares for them."""
    data_pkl = pickled({"a": tensor()})
    content = zip_of(data_pkl + bytes(12 << 20), compression=compression)
    assert len(content) < 1 << 20
    if declared:
        whole, size = bytearray(content), struct.pack("<I", len(data_pkl) + (12 << 20))
        content = bytes(whole.replace(size, struct.pack("<I", declared)))
        assert content != whole
    assert "archive/data.pkl is compressed" in refusal(content)


def test_what_a_state_dict_may_have(read):
    """Other orders, repeated values, an empty tensor, single rows, and attributes of Python 2."""
    numbers = np.arange(12, dtype=np.float32)
    values = {
        "whole": tensor(),
        "transposed": tensor((4, 3), (1, 4)),
        "a row": tensor((1, 4), (1 << 40, 1), offset=8),
        "repeated": tensor((3, 2), (0, 4), offset=1),
        "empty": tensor((0, 4), (4, 1), offset=12),
        "a number": tensor((), (), offset=3),
    }
    pairs = [list(pair) for pair in values.items()]
    found = read(zip_of(pickled(Call(collections.OrderedDict, pairs)), numbers.tobytes()))
    expected = {
        "whole": numbers.reshape(3, 4),
        "transposed": numbers.reshape(3, 4).T,
        "a row": numbers[None, 8:],
        "repeated": [[1, 5]] * 3,
        "empty": np.zeros((0, 4)),
        "a number": 3,
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_every_protocol_of_pytorch(tmp_path, read, protocol, zipped):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    content = {"model": module.state_dict(), "files": ["a"], "step": 3.5, "last": None}
    path = tmp_path / "saved.pt"
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    found = read(path.read_bytes())
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)
