"""Scalar state of an update, saved in checkpoints."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def create_state(name: str, initial: float, dtype: tf.DType) -> tf.Variable:
    """A non-trainable scalar resource variable; ``name`` is its name in checkpoints."""
    return tf.get_variable(
        name,
        shape=[],
        dtype=dtype,
        initializer=tf.constant_initializer(initial),
        trainable=False,
        use_resource=True,
    )


def create_count(name: str) -> tf.Variable:
    """An int64 :func:`create_state` that starts at 0."""
    return create_state(name, 0, tf.int64)
