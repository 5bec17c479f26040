"""Norms that are bit-equal for any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

# TensorFlow sums this many elements in a single thread, but splits a sum ten times as long.
_LONGEST_ROW = 1024


def euclidean_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm over all tensors, bit-equal for any number of threads.

    TensorFlow splits the sum over a large tensor into one part per thread, so ranks on different
    hosts could clip by different factors. Sums along rows use one thread per row, and a short sum
    uses a single thread.
    """
    import tensorflow.compat.v1 as tf

    norms = tf.concat([_norms_of_rows(tensor) for tensor in tensors], axis=0)
    while norms.shape[0] > _LONGEST_ROW:
        norms = _norms_of_rows(norms)
    return _norm(norms)


def _norms_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    """A vector with the same norm: the norm of each row, or a short tensor's elements."""
    import tensorflow.compat.v1 as tf

    size = tensor.shape.num_elements()
    if size <= _LONGEST_ROW:
        return tf.reshape(tensor, [size])
    if size == tensor.shape[-1]:
        padded = tf.pad(tf.reshape(tensor, [size]), [[0, -size % _LONGEST_ROW]])
        tensor = tf.reshape(padded, [-1, _LONGEST_ROW])
    return tf.reshape(_norm(tensor), [-1])


def _norm(tensor: tf.Tensor) -> tf.Tensor:
    """The norms along the last axis; XLA has no reduce_euclidean_norm."""
    import tensorflow.compat.v1 as tf

    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=-1))
