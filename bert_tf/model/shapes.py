"""Shapes of which some dimensions are known while the graph is built and some only when it runs."""

from __future__ import annotations

from typing import Union

import tensorflow.compat.v1 as tf

Dimension = Union[int, tf.Tensor]


def shape_of(x: tf.Tensor) -> list[Dimension]:
    """The dimensions of ``x``: Python integers where static, scalar int32 tensors elsewhere."""
    static = x.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]
