"""Shapes whose dimensions are known either when the graph is built or only when it runs."""

from __future__ import annotations

from typing import Union

import tensorflow.compat.v1 as tf

Dimension = Union[int, tf.Tensor]


def shape_of(x: tf.Tensor) -> list[Dimension]:
    """The dimensions of ``x``: Python integers if static, otherwise scalar int32 tensors."""
    static = x.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]
