"""PyTorch's files: what is refused of them, and what is said where PyTorch is missing."""

import pickle
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bert_tf.checkpoint.pytorch_files import PytorchFile
from bert_tf.util.errors import UserError


@pytest.fixture(name="saved")
def small_pytorch_file(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.arange(12.0).reshape(3, 4)}, path)
    return path


@pytest.fixture(name="refusal")
def refusal_of_a_file(saved):
    """The message about the file."""

    def refusal():
        with pytest.raises(UserError) as error:
            PytorchFile(saved)
        message = str(error.value)
        assert message.startswith(f"weights {saved}: ")
        assert len(message) < 500
        assert "\n" not in message
        return message

    return refusal


def rewrite(path, change=lambda _, content: content, *, compression=zipfile.ZIP_STORED):
    """Writes the members of a file again, each as ``change(name, content)``."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


class Call:
    """A call of a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_no_code_is_run(saved, refusal, tmp_path, zipped):
    content = {"a": Call(open, str(tmp_path / "made"), "w")}
    torch.save(content, saved, _use_new_zipfile_serialization=zipped)
    assert "refers to 'io.open', which a plain state dict never does" in refusal()
    assert not (tmp_path / "made").exists()


def nested(depth=40):
    """Tuples whose elements are the same one, so that there are 2 ** depth paths."""
    value = ()
    for _ in range(depth):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    "data_pkl",
    [
        b"\x80\x02}r\x00\x00\x00\x01.",
        b"\x80\x02\x96" + bytes(7) + b"\x01.",
        pickle.dumps({"a": 3}, 4),
        pickle.dumps([Call(int, nested())], 2),
    ],
    ids=["a place in the memo", "a length", "another protocol", "a nested argument"],
)
def test_other_pickles(saved, refusal, data_pkl):
    rewrite(saved, lambda name, content: data_pkl if name.endswith("data.pkl") else content)
    refusal()


def test_names_that_are_numbers(saved, refusal):
    torch.save({3: torch.ones(2)}, saved)
    assert "have numbers for names, such as 3;" in refusal()


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_do_not_fill_the_memory(saved, refusal, compression):
    rewrite(saved, compression=compression)
    assert "data.pkl' is compressed" in refusal()


def test_a_changed_number(saved, refusal):
    """PyTorch reads it; the archive has a checksum of it."""
    whole = saved.read_bytes()
    place = whole.index(np.arange(12, dtype=np.float32).tobytes())
    saved.write_bytes(whole[:place] + b"\x01" + whole[place + 1 :])
    assert "data/0' differs" in refusal()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_what_a_state_dict_may_have(saved, zipped):
    """Other orders, repeated values, an empty tensor, buffers, and other values beside it."""
    numbers = torch.arange(12.0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = {
        **module.state_dict(),
        "whole": numbers.reshape(3, 4),
        "transposed": numbers.reshape(3, 4).T,
        "again": numbers.reshape(3, 4),
        "repeated": numbers[1].expand(3),
        "empty": numbers[:0],
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
    }
    content = {"model": state, "files": ["a"], "step": 3.5, "last": None}
    torch.save(content, saved, _use_new_zipfile_serialization=zipped)
    file = PytorchFile(saved)
    assert file.entries.keys() == state.keys()
    assert file.entries["parameter"] == ((2,), "bfloat16")
    for name, value in state.items():
        expected = value.detach().float() if name == "parameter" else value
        np.testing.assert_array_equal(file.read(name), expected.numpy(), err_msg=name)
    assert file.share_values("whole", "again")
    assert not file.share_values("whole", "transposed")


def test_without_pytorch(saved, refusal, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch, or give the model as safetensors" in refusal()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.1+cpu"))
    assert "torch 2.5.1+cpu may run code that such a file contains" in refusal()
