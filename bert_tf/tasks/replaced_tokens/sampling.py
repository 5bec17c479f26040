"""Words drawn from a generator's distribution, reproducibly, and put in the place of others.

Dimensions: B sequences, S positions, P predictions per sequence, V = vocab_size.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout, numbers_like
from bert_tf.model.shapes import Dimension, shape_of

# A call site of random numbers beside dropout's, which number layers from 0 and heads from the end.
_SITE = (1 << 16) - 2
# The bits of a number, as many as float32 holds exactly below 1.
_BITS = 23
# The golden ratio's fraction of 2**23, odd: multiples of it are spread evenly (Knuth 1998, "The art
# of computer programming", volume 3, section 6.4).
_GOLDEN = 5183737


def uniform_numbers(dropout: Dropout, like: tf.Tensor) -> tf.Tensor:
    """Numbers in [0, 1) for the predictions ``like`` [B, P] of a micro batch: float32 [B, P].

    A number depends, as dropout does, on the seed and on the place in the global batch alone.
    """
    return _as_uniform(_random_bits(dropout, *shape_of(like)))


def uniform_numbers_of(input_ids: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """As :func:`uniform_numbers`, of nothing but the sequences ``input_ids`` [B, S] themselves.

    For evaluations, whose results then do not depend on batches or ranks. All sequences have the
    same random numbers, shifted by a checksum of each (a rotation, Cranley and Patterson 1976).
    """
    nowhere = tf.constant(0, tf.int64)
    dropout = Dropout(0, data_position=nowhere, first_example=nowhere)
    bits = _random_bits(dropout, 1, shape_of(like)[1])
    ids = tf.cast(input_ids, tf.int64)
    places = tf.range(1, tf.cast(tf.shape(ids)[1], tf.int64) + 1)
    shift = tf.reduce_sum(ids * places, axis=1, keepdims=True) * _GOLDEN
    return _as_uniform(bits + tf.cast(tf.math.floormod(shift, 1 << _BITS), tf.int32))


def _random_bits(dropout: Dropout, examples: Dimension, predictions: Dimension) -> tf.Tensor:
    """[examples, predictions] int32 in [0, 2**23)."""
    halves = tf.zeros([examples, predictions, 2], tf.uint16)
    numbers = numbers_like(halves, dropout.draw(predictions * 2, 0.0, site=_SITE))
    return tf.bitwise.bitwise_and(tf.bitcast(numbers, tf.int32), (1 << _BITS) - 1)


def _as_uniform(bits: tf.Tensor) -> tf.Tensor:
    """The lowest 23 bits of integers as float32 in [0, 1)."""
    lowest = tf.bitwise.bitwise_and(bits, (1 << _BITS) - 1)
    return tf.cast(lowest, tf.float32) * 2.0**-_BITS


def sample_classes(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """A class of each row from its softmax: int32 [N], through which no gradient flows.

    Clark et al. 2020 add Gumbel noise to every logit; the inverse of the cumulative distribution
    gives the same distribution from one random number a row.

    Args:
      logits: [N, V] float32.
      uniform: [N] float32 in [0, 1), in steps of 2**-23.
    """
    cumulative = tf.cumsum(tf.nn.softmax(tf.stop_gradient(logits)), axis=-1)
    # Less than the whole by at least one step, so a class is found.
    wanted = uniform[:, tf.newaxis] * cumulative[:, -1:]
    return tf.searchsorted(cumulative, wanted, side="right")[:, 0]


def with_tokens_at(input_ids: tf.Tensor, positions: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """``input_ids`` [B, S] with ``tokens`` at ``positions``, all integers; the others [B, P].

    Predictions that only pad a record have position 0, that of [CLS], which keeps its token.
    """
    B, S = shape_of(input_ids)
    there = tf.gather(input_ids, positions, batch_dims=1)
    tokens = tf.where(positions > 0, tf.cast(tokens, input_ids.dtype), there)
    rows = tf.range(B, dtype=positions.dtype)[:, tf.newaxis] * tf.cast(S, positions.dtype)
    places = tf.reshape(rows + positions, [-1, 1])
    flat = tf.tensor_scatter_nd_update(
        tf.reshape(input_ids, [-1]), places, tf.reshape(tokens, [-1])
    )
    return tf.reshape(flat, [B, S])
