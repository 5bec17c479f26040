"""An optimizer with an option, a slot and a trust ratio of its own is a file like this one."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

from bert_tf.checkpoint.names import is_optimizer_state
from bert_tf.cli import training_flags as flags
from bert_tf.cli.settings_flags import Definer
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.optimizers import OPTIMIZERS
from bert_tf.update.optimizers.row import Change, OptimizerRow
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval, Option
from tests.helpers.updates import applied


def normed_momentum(parameters, rate, context, *, damping):
    """Momentum with steps in the norm of the weights, as in LARS (You et al. 2017)."""
    means = [(1 - damping) * slot + p.gradient for p in parameters for slot in p.slots]
    weights = [p.variable.read_value() for p in parameters]
    norms = iter(context.norms([*weights, *means]))
    ratios = [next(norms) for _ in parameters]
    ratios = [weight_norm / next(norms) for weight_norm in ratios]
    return [Change(rate * ratio * mean, (mean,), (ratio,)) for mean, ratio in zip(means, ratios)]


ROW = OptimizerRow(
    title="LARS without decay",
    rule=normed_momentum,
    slots=("mean",),
    options={"damping": Option(0.5, "lars_damping", "Damping.", bounds=Interval(0, 1))},
    ratio_kinds=("trust_ratio",),
    can_be_sharded=True,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "lars", ROW)


def test_it_updates_weights_and_slots():
    rng = np.random.default_rng(0)
    weights = {"a/kernel": rng.normal(size=[3, 2]), "b/bias": rng.normal(size=[4])}
    factors = {"a/kernel": 1.0, "b/bias": 0.5}
    means = {name: np.zeros_like(value) for name, value in weights.items()}
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [
            tf.get_variable(name, initializer=np.float32(value), use_resource=True)
            for name, value in weights.items()
        ]
        fed = [tf.placeholder(tf.float32, variable.shape) for variable in variables]
        optimizer = Optimizer("lars", 0.1, rate_factor=factors.get, damping=0.25)
        update = applied(optimizer, list(zip(fed, variables)), tf.constant(2.0))
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            gradients = {name: rng.normal(size=value.shape) for name, value in weights.items()}
            _, ratios = session.run(update, dict(zip(fed, gradients.values())))
            expected = []
            for name, gradient in gradients.items():
                means[name] = 0.75 * means[name] + 2.0 * gradient
                expected.append(np.linalg.norm(weights[name]) / np.linalg.norm(means[name]))
                weights[name] = weights[name] - 0.1 * factors[name] * expected[-1] * means[name]
            np.testing.assert_allclose(ratios, [expected], rtol=1e-5)
        found = session.run({v.op.name: v for v in tf.global_variables()})
    for name, value in weights.items():
        np.testing.assert_allclose(found.pop(name), value, rtol=1e-5)
        np.testing.assert_allclose(found.pop(f"{name}/mean"), means[name], rtol=1e-5)
    assert not found
    assert is_optimizer_state("a/kernel/mean")


def test_it_has_its_flag():
    def settings(*given):
        values = absl_flags.FlagValues()
        flags.define_optimization_flags(
            Definer(values), num_train_steps={"default": 10}, num_warmup_steps={"default": 1}
        )
        return flags.optimization_settings(values(["program", *given]) and values)

    given = ("--optimizer_type=lars", "--learning_rate=1")
    assert settings(*given, "--lars_damping=0.75").optimizer_options == {"damping": 0.75}
    assert settings(*given).optimizer_options == {"damping": 0.5}
    with pytest.raises(UserError, match=r"--lars_damping=2 must be in \[0, 1\]\."):
        settings(*given, "--lars_damping=2")
    with pytest.raises(UserError, match="--lars_damping belongs to --optimizer_type=lars"):
        settings("--learning_rate=1", "--lars_damping=0.75")
