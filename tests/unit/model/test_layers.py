"""Layers against numpy with values for which a whole network would not reveal errors."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import DropoutSite, blocks_for
from bert_tf.model.layers import layer_norm
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import create_variables, dense_specs, layer_norm_specs
from tests.helpers.native_ops import requires_native_ops

B, S, D = 2, 3, 8
# Deviations of a row: far above the root of the epsilon, 1e-6, about it, and far below.
DEVIATIONS = np.array([1.0, 1e-4, 3e-6, 1e-6, 3e-7, 1e-8])


def rows():
    """[B, S, D] float32, a row for each deviation, and the expected normalised values."""
    drawn = np.random.default_rng(1).normal(size=[len(DEVIATIONS), D])
    centered = drawn - drawn.mean(axis=1, keepdims=True)
    x = (centered * DEVIATIONS[:, None]).astype(np.float32)
    exact = x.astype(np.float64)
    exact -= exact.mean(axis=1, keepdims=True)
    # Google's networks: tf.contrib.layers.layer_norm, whose variance_epsilon is 1e-12.
    expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-12)
    return x.reshape(B, S, D), expected.reshape(B, S, D)


def computed(build):
    specs = [*dense_specs("dense", inputs=D, outputs=D), *layer_norm_specs("LayerNorm", width=D)]
    with tf.Graph().as_default(), tf.Session() as session:
        output = build(create_variables(specs, initializer_range=0.02))
        session.run(tf.global_variables_initializer())
        return session.run(output)


def test_small_variances_are_normalised_with_googles_epsilon():
    x, expected = rows()
    policy = policy_for("fp32")
    found = computed(lambda scoped: layer_norm(tf.constant(x), scoped, "LayerNorm", policy=policy))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["plain", pytest.param("native", marks=requires_native_ops)])
def test_small_variances_are_normalised_after_a_residual(form):
    x, expected = rows()
    options = ForwardOptions(native_layers=form == "native")

    def close(scoped):
        blocks = blocks_for(options, tf.ones([B, S], tf.int32))
        residual = blocks.stream(tf.constant(x))
        nothing = tf.zeros_like(residual.full)
        site = DropoutSite(None, 0, 0.0)
        return blocks.output(blocks.close_residual(nothing, residual, scoped, site=site))

    np.testing.assert_allclose(computed(close), expected, rtol=1e-4, atol=1e-6)
