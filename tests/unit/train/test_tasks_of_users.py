"""A new task is one file: two tasks that the rest of the code does not know."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs
from bert_tf.model.variables import create_variables
from bert_tf.train.evaluation import LossEvaluation
from bert_tf.train.execute import run_task
from bert_tf.train.job import RunModel
from bert_tf.util.errors import UserError
from tests.helpers.regression_task import RegressionTask
from tests.helpers.settings import optimization_settings, runtime_settings, with_values
from tests.helpers.teacher_task import TEACHER, TeacherTask
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import CONFIG, S, V, pretraining_settings

LEARNT = dataclasses.replace(CONFIG, hidden_dropout_prob=0.1)
KERNEL, BIAS = np.float32([[1.0], [-2.0], [0.5]]), 3.0
BATCH = 4


def lines(position):
    """A batch of the regression, which depends only on its number."""
    x = np.random.default_rng(position).normal(size=[BATCH, 3]).astype(np.float32)
    return {"x": x, "y": (x @ KERNEL)[:, 0] + np.float32(BIAS)}


def sequences(position):
    ids = np.random.default_rng(position).integers(5, V, [BATCH, S]).astype(np.int32)
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}


def dataset(first, number, read):
    spec = {n: tf.TensorSpec([None, *v.shape[1:]], v.dtype) for n, v in read(0).items()}
    batches = range(first, first + number)
    return tf.data.Dataset.from_generator(
        lambda: map(read, batches),
        output_types={name: s.dtype for name, s in spec.items()},
        output_shapes={name: s.shape for name, s in spec.items()},
    )


@pytest.fixture(name="train")
def training(tmp_path):
    usual = pretraining_settings(tmp_path).run

    def train(task, read, *, steps, frozen=None, directory="model", rate=1e-3, **changes):
        settings = with_values(usual, output_dir=tmp_path / directory, do_eval=True, **changes)
        optimization = optimization_settings(num_train_steps=steps, learning_rate=rate)
        return run_task(
            RunModel(task, None, frozen=frozen or {}),
            settings,
            optimization,
            runtime_settings(precision="fp32"),
            batches=lambda run, _: dataset(run.start.data_position, steps, read),
            max_seq_length=S,
            evaluation=lambda run: LossEvaluation(
                lambda: dataset(1000, 2, read), ranks=run.ranks, task=task
            ),
        )

    return train


def records_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_regression(train, tmp_path):
    results = train(RegressionTask(CONFIG), lines, steps=400, rate=0.05, eval_every_steps=200,
                    save_checkpoints_steps=200, display_loss_steps=100)  # fmt: skip
    weights = variables_of(tmp_path / "model" / "model.ckpt-400")
    np.testing.assert_allclose(weights["line/kernel"], KERNEL, atol=0.1)
    np.testing.assert_allclose(weights["line/bias"], [BIAS], atol=0.1)
    assert results["rating_rmse"] == pytest.approx(results["rating_loss"] ** 0.5)
    assert results["rating_rmse"] < 0.2
    before, between, after = records_of(tmp_path / "model" / "eval_log.jsonl")
    assert before["rating_loss"] > 5 > between["rating_loss"] > after["rating_loss"]
    for step in records_of(tmp_path / "model" / "log.jsonl"):
        assert "rating_absolute_error" in step
        assert not any("accuracy" in name for name in step)


@pytest.fixture(name="teacher", scope="module")
def weights_of_a_teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "model.ckpt"
    with tf.Graph().as_default(), tf.Session() as session:
        create_variables(bert_specs(CONFIG, pooler=False), initializer_range=0.5, seed=7)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(path))
    return path


@pytest.mark.slow
def test_a_frozen_second_network(train, teacher, tmp_path):
    """Each session reads it; it is neither trained nor saved. A resumed run has it too."""
    task = TeacherTask(LEARNT, CONFIG)
    given = {"frozen": {TEACHER: str(teacher)}, "save_checkpoints_steps": 3, "rate": 1e-2,
             "keep_checkpoint_max": 3, "eval_every_steps": 3}  # fmt: skip
    at_once = train(task, sequences, steps=6, directory="at_once", **given)
    directory = shutil.copytree(tmp_path / "at_once", tmp_path / "stopped")
    for path in directory.glob("model.ckpt-6*"):
        path.unlink()
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    resumed = train(task, sequences, steps=6, directory="stopped", **given)
    assert resumed == at_once
    final = variables_of(tmp_path / "at_once" / "model.ckpt-6")
    assert not any(name.startswith(TEACHER) for name in final)
    assert {"bert/encoder/layer_0/output/dense/kernel/adam_m", "global_step"} <= final.keys()
    losses = [r["loss"] for r in records_of(tmp_path / "at_once" / "eval_log.jsonl")]
    assert losses[0] > losses[1] > losses[2] > 0


def test_a_student_that_starts_from_its_teacher_has_zero_distance(train, teacher):
    """Variables below the prefix are read from the other checkpoint by their names."""
    results = train(TeacherTask(CONFIG, CONFIG), sequences, steps=1, do_train=False,
                    init_checkpoint=str(teacher), frozen={TEACHER: str(teacher)})  # fmt: skip
    assert results["distance_loss"] == 0.0


def test_a_second_network_of_other_sizes_is_refused(train, teacher, tmp_path):
    task = TeacherTask(CONFIG, dataclasses.replace(CONFIG, intermediate_size=6))
    with pytest.raises(UserError, match=r"cannot start from .*model\.ckpt.*intermediate"):
        train(task, sequences, steps=1, frozen={TEACHER: str(teacher)})
    assert not (tmp_path / "model" / "run.json").exists()
