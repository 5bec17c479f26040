"""Weights with NaN or infinity: no program computes or writes anything from them."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, write_checkpoint
from bert_tf.commands.average_checkpoints import average_checkpoints
from bert_tf.commands.convert import convert
from bert_tf.commands.extend_vocabulary import Choice, extend_vocabulary
from bert_tf.model_directory.complete import find_model
from bert_tf.serving.export import export_saved_model
from bert_tf.serving.load import load_model
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import open_trained
from bert_tf.util.errors import UserError
from tests.helpers.small_task_models import WRITERS, write_pretrained

KERNEL = "bert/encoder/layer_0/output/dense/kernel"
SLOT = "bert/encoder/layer_0/output/dense/kernel/adam_m"


def poison(path, *, name=KERNEL, step=7):
    """Gives three values of a variable that are not finite to a checkpoint of ``step`` updates."""
    file = TensorflowCheckpoint(str(path / "model.ckpt-7"))
    arrays = {each: file.read(each) for each in file.entries}
    arrays[SLOT], arrays["global_step"] = np.zeros_like(arrays[KERNEL]), np.int64(step)
    arrays[name] = arrays[name].copy()
    arrays[name].flat[[0, 5, 9]] = np.nan, np.inf, -np.inf
    write_checkpoint(str(path / f"model.ckpt-{step}"), arrays)


@pytest.fixture(name="refused")
def context_of_a_refusal(tmp_path):
    message = (
        f"weights {tmp_path / 'model/model.ckpt-7'}: 3 of 2,048 values of {KERNEL} are NaN or "
        "infinite; give other weights, such as an earlier checkpoint."
    )

    def refused(action):
        with pytest.raises(UserError) as error:
            action()
        assert str(error.value) == message
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    return refused


@pytest.mark.parametrize("task", WRITERS)
def test_models_of_every_task_are_refused(tmp_path, refused, task):
    model = WRITERS[task](tmp_path / "model")
    poison(model)
    refused(lambda: load_model(model))


def test_nothing_is_written_from_them(tmp_path, refused):
    model, target = write_pretrained(tmp_path / "model"), tmp_path / "new"
    poison(model)
    poison(model, name=SLOT, step=8)
    (tmp_path / "model/words.txt").write_text("seaside")
    choice = Choice(text=None, words=str(tmp_path / "model/words.txt"))
    source = open_source(model / "model.ckpt-7")
    refused(lambda: convert(source, target, "huggingface"))
    refused(lambda: average_checkpoints(model, target, 2))
    started = find_model(init_checkpoint=model / "model.ckpt-7")
    refused(lambda: extend_vocabulary(started, target, choice))
    found = open_trained(model / "model.ckpt-7")
    refused(lambda: export_saved_model(found, ExportSettings(), model / "exported"))


def test_the_state_of_an_optimizer_does_not_matter(tmp_path):
    model = write_pretrained(tmp_path / "model")
    poison(model, name=SLOT)
    assert convert(open_source(model), tmp_path / "new", "google")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("file_name", ["model.safetensors", "pytorch_model.bin"])
def test_pytorch_files(tmp_path, dtype, file_name):
    values = torch.ones(12, dtype=dtype)
    values[3:5] = torch.tensor([float("nan"), float("inf")])
    state = {
        "_orig_mod.pooler.dense.bias": values,
        "_orig_mod.pooler.dense.weight": torch.ones(2, 2),
        "_orig_mod.embeddings.word_embeddings.weight": torch.ones(2, 2, dtype=dtype),
    }
    write = save_file if file_name.endswith("safetensors") else torch.save
    write(state, tmp_path / file_name)
    source = open_source(tmp_path)
    assert source.read("bert/pooler/dense/kernel").all()
    with pytest.raises(UserError) as error:
        source.read("bert/pooler/dense/bias")
    assert f"{file_name}: 2 of 12 values of _orig_mod.pooler.dense.bias are" in str(error.value)


def test_values_beyond_float32(tmp_path):
    state = {"pooler.dense.bias": torch.tensor([1e300, 1.0], dtype=torch.float64)}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(
        UserError, match=r"1 of 2 values of pooler\.dense\.bias are NaN or infinite"
    ):
        open_source(tmp_path).read("bert/pooler/dense/bias")
