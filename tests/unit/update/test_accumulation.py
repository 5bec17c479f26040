"""Accumulated gradients against one big batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.layers import product
from bert_tf.model.precision import policy_for
from bert_tf.update.gradients import accumulate_gradients, gradients_of
from bert_tf.update.kernels import TensorFlowKernels
from tests.helpers.objectives import differentiated

DATA = np.random.default_rng(0).normal(size=[12, 3]).astype(np.float32)
WEIGHTS = np.array([0.5, -1.0, 2.0], np.float32)


def accumulated(steps, reduce=list):
    """Gradient of sum(tanh(x . w)^2) over DATA in ``steps`` micro batches, and two metrics."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("w", initializer=WEIGHTS, use_resource=True)
        data = tf.constant(DATA)
        size = len(DATA) // steps

        def micro_batch(index):
            part = data[index * size : (index + 1) * size]
            values = tf.tanh(tf.linalg.matvec(part, variable)) ** 2
            return tf.reduce_sum(values), tf.stack([tf.reduce_sum(values), float(size)])

        gradients, metrics = accumulate_gradients(
            differentiated(micro_batch, [variable], reduce=reduce),
            accumulation_steps=steps,
            num_metrics=2,
            variables=[variable],
            add=TensorFlowKernels().add,
        )
        session.run(tf.global_variables_initializer())
        return session.run([gradients, metrics])


def expected():
    values = np.tanh(DATA @ WEIGHTS)
    gradient = (2 * values * (1 - values**2)) @ DATA
    return gradient, [np.sum(values**2), len(DATA)]


@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_sums_equal_those_of_the_whole_batch(steps):
    [gradient], metrics = accumulated(steps)
    wanted_gradient, wanted_metrics = expected()
    # Every split adds the same numbers in float32: the sums differ in rounding only.
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(metrics, wanted_metrics, rtol=2e-6)


def test_reduce_is_applied_to_every_micro_batch():
    [gradient], _ = accumulated(3, reduce=lambda gradients: [3.0 * g for g in gradients])
    np.testing.assert_allclose(gradient, 3 * expected()[0], rtol=2e-6, atol=6e-6)


def test_a_variable_that_the_objective_does_not_use_is_named():
    with tf.Graph().as_default():
        used = tf.get_variable("used", initializer=1.0)
        unused = tf.get_variable("unused", initializer=1.0)
        with pytest.raises(ValueError, match="unused"):
            gradients_of(used * 2, [used, unused], ["used", "unused"])


def test_weights_are_cast_before_the_loop_and_their_gradients_inside():
    policy = policy_for("bf16")
    with tf.Graph().as_default() as graph, tf.Session() as session:
        kernel = tf.get_variable("kernel", initializer=WEIGHTS[:, np.newaxis], use_resource=True)
        data = tf.constant(DATA)

        def micro_batch(index):
            output = product(data[index * 4 : (index + 1) * 4], kernel, policy=policy)
            return tf.reduce_sum(tf.cast(output, tf.float32)), tf.zeros([1])

        [gradient], _ = accumulate_gradients(
            differentiated(micro_batch, [kernel]),
            accumulation_steps=3,
            num_metrics=1,
            variables=[kernel],
            add=TensorFlowKernels().add,
        )
        session.run(tf.global_variables_initializer())
        found = session.run(gradient)
        graph_def = graph.as_graph_def()
    body = next(f for f in graph_def.library.function if "while_body" in f.signature.name)
    assert "ReadVariableOp" in {node.op for node in graph_def.node}
    assert "ReadVariableOp" not in {node.op for node in body.node_def}
    np.testing.assert_allclose(found[:, 0], DATA.sum(0), rtol=2.0**-7)
