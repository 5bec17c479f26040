"""Averages of the last checkpoints of a run, against NumPy."""

import json

import numpy as np
import pytest

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.commands.average_checkpoints import average_checkpoints
from bert_tf.model.config import CONFIG_NAME, BertConfig
from bert_tf.util.errors import UserError
from tests.helpers.forward_passes import pretraining_specs

CONFIG = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=10,
)
STEPS = (90, 100, 1000, 1100)  # by name, 90 is the last


@pytest.fixture(name="weights")
def weights_of_a_run():
    draw = np.random.default_rng(4)
    shapes = {spec.name: spec.shape for spec in pretraining_specs(CONFIG)}
    return {
        step: {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for step in STEPS
    }


@pytest.fixture(name="directory")
def output_directory(weights, tmp_path):
    path = tmp_path / "output"
    path.mkdir()
    (path / CONFIG_NAME).write_text(json.dumps(CONFIG.to_dict()))
    for step, values in weights.items():
        state = {"bert/pooler/dense/bias/adam_m": np.ones(8, np.float32)}
        state["global_step"] = np.int64(step)
        write_checkpoint(str(path / f"model.ckpt-{step}"), {**values, **state})
    return path


@pytest.mark.parametrize("target", ["bert_tf", "huggingface"])
def test_every_weight_is_the_mean_of_the_last(directory, weights, tmp_path, target):
    lines = average_checkpoints(directory, tmp_path / "averaged", 3, target)
    assert lines[0] == "the mean of model.ckpt-100, model.ckpt-1000, model.ckpt-1100"
    found = open_source(tmp_path / "averaged")
    assert {*found.stored} - {"global_step"} == {*weights[100]}
    for name in weights[100]:
        values = [weights[step][name].astype(np.float64) for step in STEPS[1:]]
        np.testing.assert_array_equal(found.read(name), np.mean(values, axis=0).astype(np.float32))


def test_there_are_fewer(directory, tmp_path):
    with pytest.raises(UserError, match=r"--last=5: .* has 4 complete checkpoints after step 0"):
        average_checkpoints(directory, tmp_path / "averaged", 5)
    with pytest.raises(UserError, match=r"--model_dir=.*/none is not a directory"):
        average_checkpoints(tmp_path / "none", tmp_path / "averaged", 2)
    assert not (tmp_path / "averaged").exists()


def test_the_checkpoint_before_the_first_update_does_not_count(directory, weights, tmp_path):
    write_checkpoint(str(directory / "model.ckpt-0"), weights[90])
    lines = average_checkpoints(directory, tmp_path / "averaged", 4)
    assert lines[0] == f"the mean of {', '.join(f'model.ckpt-{step}' for step in STEPS)}"
    with pytest.raises(UserError, match=r"--last=5: .* has 4 complete"):
        average_checkpoints(directory, tmp_path / "of_5", 5)


def test_the_report_names_no_flag_of_another_command(directory, weights, tmp_path):
    for step in STEPS[-2:]:
        bias = {"generator/cls/predictions/output_bias": np.zeros(20, np.float32)}
        write_checkpoint(str(directory / f"model.ckpt-{step}"), {**weights[step], **bias})
    lines = average_checkpoints(directory, tmp_path / "averaged", 2)
    assert "1 of the generator, left out" in lines


def test_checkpoints_of_different_networks(directory, weights, tmp_path):
    values = {**weights[100], "cls/squad/output_bias": np.zeros(2, np.float32)}
    write_checkpoint(str(directory / "model.ckpt-100"), values)
    with pytest.raises(UserError, match="not checkpoints of the same network: cls/squad/output_b"):
        average_checkpoints(directory, tmp_path / "averaged", 4)
    assert not (tmp_path / "averaged").exists()
