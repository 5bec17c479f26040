"""Norms and ratios of variables and layers, against the checkpoints of the same run."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.diagnose.layer_summaries import LayerSummaries, figures_of_layers, layer_of
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.train.run_log import RunLog
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.train_op import TrainOutputs, VariableFigures
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.settings import with_values
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import pretraining_settings
from tests.helpers.updates import applied

RATE, DECAY, EPSILON = 1e-3, 0.01, 1e-6
BETA_1, BETA_2 = 0.9, 0.999
STEPS, EVERY = 5, 2


def trained(directory, every, *, native, **changes):
    """Lines of layer_log.jsonl, of log.jsonl, and the checkpoint after each step."""
    directory.mkdir()
    settings = pretraining_settings(directory)
    run = with_values(
        settings.run,
        layer_summary_steps=every,
        save_checkpoints_steps=1,
        keep_checkpoint_max=STEPS + 1,
    )
    optimization = with_values(
        settings.optimization,
        num_train_steps=STEPS,
        accumulation_steps=2,
        learning_rate=RATE,
        end_learning_rate=RATE,
        **changes,
    )
    runtime = dataclasses.replace(settings.runtime, native_ops=native)
    pretraining.run(
        dataclasses.replace(settings, run=run, optimization=optimization, runtime=runtime)
    )
    output_dir = run.output_dir
    logs = [
        [json.loads(line) for line in (output_dir / name).read_text().splitlines()]
        for name in ("layer_log.jsonl", "log.jsonl")
        if (output_dir / name).exists()
    ]
    return logs, [variables_of(output_dir / f"model.ckpt-{step}") for step in range(STEPS + 1)]


ALIKE = pytest.mark.exhaustive


@pytest.mark.slow
@pytest.mark.parametrize(
    ("native", "changes"),
    [
        pytest.param(True, {"optimizer": "adam"}, marks=[requires_native_ops, ALIKE]),
        (False, {"optimizer": "adam"}),
        pytest.param(True, {"optimizer": "lamb"}, marks=requires_native_ops),
        pytest.param(
            False, {"optimizer": "lamb", "optimizer_options": {"prenormalize": True}}, marks=ALIKE
        ),
        pytest.param(True, {"optimizer": "lans"}, marks=[requires_native_ops, ALIKE]),
        pytest.param(False, {"optimizer": "lans"}, marks=ALIKE),
        pytest.param(True, {"optimizer": "muon"}, marks=[requires_native_ops, ALIKE]),
    ],
)
def test_figures_are_those_of_the_checkpoints_and_weights_stay_the_same(tmp_path, native, changes):
    (lines, log), weights = trained(tmp_path / "with", EVERY, native=native, **changes)
    (_,), without = trained(tmp_path / "without", 0, native=native, **changes)
    for before, after in zip(weights, without):
        for name, value in before.items():
            np.testing.assert_array_equal(value, after[name], err_msg=name)
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        before, after = weights[line["step"] - 1], weights[line["step"]]
        for name, found in line["variables"].items():
            norm, moved = (np.linalg.norm(v) for v in (before[name], after[name] - before[name]))
            assert found["weight_norm"] == pytest.approx(norm, rel=1e-5), name
            assert found["update_norm"] == pytest.approx(moved, rel=1e-5), name
            if norm:
                assert found["update_ratio"] == pytest.approx(moved / norm, rel=2e-5)
        gradients = [found["gradient_norm"] for found in line["variables"].values()]
        whole = log[line["step"] - 1]["gradient_norm"]
        assert math.hypot(*gradients) == pytest.approx(whole, rel=1e-5)
        check_ratios(line["variables"], before, after, line["step"], changes["optimizer"])


def check_ratios(variables, before, after, step, optimizer):
    """The trust ratios of matrices, from the moments in the checkpoint after the update."""
    kinds = optimizer_row(optimizer).ratio_kinds
    for name, found in variables.items():
        adapts = bool(kinds) and not name.endswith(("bias", "beta", "gamma"))
        assert set(found) - {"weight_norm", "gradient_norm", "update_norm", "update_ratio"} == (
            set(kinds) if adapts else set()
        )
        if adapts:
            m, v = (after[f"{name}/adam_{slot}"].astype(np.float64) for slot in "mv")
            m, v = m / (1 - BETA_1**step), v / (1 - BETA_2**step)
            direction = m / (np.sqrt(v) + EPSILON) + DECAY * before[name]
            ratio = np.linalg.norm(before[name]) / np.linalg.norm(direction)
            assert found["trust_ratio"] == pytest.approx(ratio, rel=1e-3), name


class OneVariable:
    """An update that adds 3 to the weights 4, unless it is said not to be finite."""

    def __init__(self):
        step = tf.train.get_or_create_global_step()
        self.weights = tf.get_variable("layer_7/w", initializer=[4.0], use_resource=True)
        self.is_finite = tf.placeholder(tf.bool, [])
        self.fetched = tf.get_variable("fetched", initializer=0.0, use_resource=True)
        applied = tf.cast(self.is_finite, tf.float32)
        self.train_op = tf.group(
            self.weights.assign_add([3.0 * applied]), step.assign_add(tf.cast(applied, tf.int64))
        )
        norms = self.fetched.assign_add(1.0)  # counts how often they were computed
        figures = VariableFigures([self.weights], tf.reshape(norms, [1]), {})
        one = tf.constant(1.0)
        self.outputs = TrainOutputs(
            train_op=self.train_op,
            term_sums={},
            data_position=step,
            num_sequences=step,
            is_finite=self.is_finite,
            gradient_norm=one,
            learning_rate=one,
            loss_scale=one,
            gradients=[],
            figures=figures,
        )


def test_a_skipped_update_is_not_logged_and_others_compute_nothing(tmp_path):
    with tf.Graph().as_default():
        update = OneVariable()
        hook = LayerSummaries(update.outputs, every_steps=2, log=RunLog(tmp_path))
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for finite in (True, False, False, True, True):
                session.run(update.train_op, {update.is_finite: finite})
            counter = update.fetched
            # Without hooks, which may compute them in the same call.
            computed = session.run_step_fn(lambda step_context: step_context.session.run(counter))
            assert computed == 3
    [line] = map(json.loads, (tmp_path / "layer_log.jsonl").read_text().splitlines())
    assert line["step"] == 2
    expected = {"weight_norm": 7, "gradient_norm": 3, "update_norm": 3, "update_ratio": 0.428571}
    assert line["layers"] == {"layer_7": expected}
    assert line["variables"] == {"layer_7/w": expected}


def test_figures_of_a_layer():
    usual = {"weight_norm": 3.0, "gradient_norm": 0.0, "update_norm": 0.3, "update_ratio": 0.1}
    other = {**usual, "weight_norm": 4.0, "update_norm": 0.4}
    found = figures_of_layers(
        {
            "bert/encoder/layer_10/a/kernel": {**usual, "trust_ratio": 2.0},
            "bert/encoder/layer_10/b/kernel": {**other, "trust_ratio": 5.0},
            "bert/encoder/layer_10/b/bias": {**other, "weight_norm": 0.0, "update_norm": 0.0},
            "bert/encoder/layer_1/b/bias": {**usual, "weight_norm": 0.0},
        }
    )
    assert found["layer_10"] == pytest.approx(
        {
            "weight_norm": 5.0,
            "gradient_norm": 0.0,
            "update_norm": 0.5,
            "update_ratio": 0.1,
            "smallest_trust_ratio": 2.0,
            "largest_trust_ratio": 5.0,
        }
    )
    assert math.isnan(found["layer_1"]["update_ratio"])
    assert "smallest_trust_ratio" not in found["layer_1"]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("bert/embeddings/word_embeddings", "embeddings"),
        ("bert/embeddings/LayerNorm/beta", "embeddings"),
        ("bert/encoder/layer_11/attention/self/query/kernel", "layer_11"),
        ("bert/pooler/dense/kernel", "pooler"),
        ("cls/predictions/transform/dense/bias", "cls/predictions"),
        ("cls/squad/output_weights", "cls/squad"),
        ("output_bias", "output_bias"),
        ("dense/kernel", "dense"),
    ],
)
def test_layers_of_variables(name, layer):
    assert layer_of(name) == layer


@pytest.mark.parametrize(("optimizer", "adapts"), [("adam", False), ("lamb", True)])
def test_ratios_of_groups_with_rates_of_their_own_are_in_the_order_of_the_variables(
    optimizer, adapts
):
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [
            tf.get_variable(name, initializer=[size], use_resource=True)
            for name, size in (("a", 1.0), ("bias", 7.0), ("c", 3.0))
        ]
        built = Optimizer(
            optimizer, 0.0, weight_decay=1.0, rate_factor=lambda name: 1 + (name == "a")
        )
        gradients = [tf.zeros([1])] * 3  # the direction is the decay, the weights themselves
        update = applied(built, list(zip(gradients, variables)))
        assert (update.ratios is not None) == adapts
        if adapts:
            session.run(tf.global_variables_initializer())
            _, found = session.run(update)
            np.testing.assert_array_equal(found, [[1.0, np.nan, 1.0]])
