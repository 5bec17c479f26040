"""Basic layers: dense, layer normalisation, activations.

A layer's inputs and outputs are float32; ``PrecisionPolicy`` sets the dtypes used inside.
"""

from __future__ import annotations

import math
from typing import Callable, Union

import tensorflow.compat.v1 as tf

from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import Variables

# As in tf.contrib.layers.layer_norm, with which Google's released networks were trained.
LAYER_NORM_EPSILON = 1e-12

Dimension = Union[int, tf.Tensor]


def shape_of(x: tf.Tensor) -> list[Dimension]:
    """The dimensions of ``x``: Python integers if static, otherwise scalar int32 tensors."""
    static = x.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def rows_of_sequences(x: tf.Tensor) -> tf.Tensor:
    """[..., S] -> [sequences, S]: an encoder reads all sequences of an example alike."""
    return x if x.shape.rank == 2 else tf.reshape(x, [-1, shape_of(x)[-1]])


def computed_in(
    dtype: tf.DType, function: Callable[..., tf.Tensor], *operands: tf.Tensor
) -> tf.Tensor:
    """Applies ``function`` to the operands cast to ``dtype``; casts the result to float32."""
    return tf.cast(function(*(tf.cast(operand, dtype) for operand in operands)), tf.float32)


def operand(weights: tf.Variable | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts weights to the dtype of a product.

    A variable is read and cast once per update, outside the loop over micro batches.
    """
    if isinstance(weights, tf.Tensor):
        return tf.cast(weights, dtype)
    with tf.init_scope():
        return tf.cast(tf.convert_to_tensor(weights), dtype)


def product(x: tf.Tensor, kernel: tf.Tensor, *, policy: PrecisionPolicy) -> tf.Tensor:
    """[..., inputs] by [inputs, outputs] -> [..., outputs], in the dtype of dense products."""
    inputs, outputs = kernel.shape.as_list()
    # Multiply two matrices: a batched product with a single kernel is slower.
    rows = tf.cast(tf.reshape(x, [-1, inputs]), policy.dense)
    return tf.reshape(tf.matmul(rows, operand(kernel, policy.dense)), [*shape_of(x)[:-1], outputs])


def dense(x: tf.Tensor, variables: Variables, name: str, *, policy: PrecisionPolicy) -> tf.Tensor:
    """[..., inputs] -> [..., outputs]: the product with ``name``/kernel, plus ``name``/bias."""
    with variables.scope(name) as scoped:
        multiplied = product(x, scoped["kernel"], policy=policy)
        return computed_in(policy.activations, tf.nn.bias_add, multiplied, scoped["bias"])


def layer_norm(
    x: tf.Tensor, variables: Variables, name: str, *, policy: PrecisionPolicy
) -> tf.Tensor:
    """Normalises the last axis to mean 0, variance 1, then scales and shifts (Ba et al. 2016)."""
    with variables.scope(name) as scoped:
        return computed_in(policy.layer_norm, _normalize, x, scoped["gamma"], scoped["beta"])


def _normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    return centered * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * gamma + beta


def activate(x: tf.Tensor, activation: str, *, policy: PrecisionPolicy) -> tf.Tensor:
    """Applies one of ``config.ACTIVATIONS``."""
    return computed_in(policy.activations, _ACTIVATIONS[activation], x)


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    # Hendrycks and Gimpel 2016, section 2, tanh approximation; x * x is much cheaper than tf.pow.
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * x * (1.0 + 0.044715 * x * x)))


def _gelu_erf(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


# The forms of GELU, and whether each is the exact one.
GELUS = {"gelu": False, "gelu_tanh": False, "gelu_erf": True}
_ACTIVATIONS = {
    **{name: _gelu_erf if exact else _gelu_tanh for name, exact in GELUS.items()},
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
