"""Samples tokens from a generator's distribution, reproducibly, and substitutes them.

Dimensions: B sequences, S positions, P predictions per sequence, V = vocab_size.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout, numbers_like
from bert_tf.model.layers import Dimension, shape_of

# A call site for random numbers. Dropout numbers layers from 0 and heads from the other end.
_SITE = (1 << 16) - 2
# Random bits per number: as many as float32 represents exactly below 1.
_BITS = 23
# The golden ratio's fraction of 2**23, odd: its multiples are spread evenly (Knuth 1998, "The art
# of computer programming", volume 3, section 6.4).
_GOLDEN = 5183737


def uniform_numbers(dropout: Dropout, like: tf.Tensor) -> tf.Tensor:
    """Draws a float32 in [0, 1) for each prediction of a micro batch, ``like`` [B, P]: [B, P].

    As with dropout, numbers depend only on the seed and on the place in the global batch.
    """
    return _as_uniform(_random_bits(dropout, *shape_of(like)))


def uniform_numbers_of(input_ids: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Like :func:`uniform_numbers`, but dependent only on the sequences ``input_ids`` [B, S].

    For evaluations, whose results must not depend on batches or ranks. All sequences use the same
    random numbers, each shifted by its checksum (a rotation, Cranley and Patterson 1976).
    """
    nowhere = tf.constant(0, tf.int64)
    dropout = Dropout(0, data_position=nowhere, first_example=nowhere)
    bits = _random_bits(dropout, 1, shape_of(like)[1])
    ids = tf.cast(input_ids, tf.int64)
    places = tf.range(1, tf.cast(tf.shape(ids)[1], tf.int64) + 1)
    shift = tf.reduce_sum(ids * places, axis=1, keepdims=True) * _GOLDEN
    return _as_uniform(bits + tf.cast(tf.math.floormod(shift, 1 << _BITS), tf.int32))


def _random_bits(dropout: Dropout, examples: Dimension, predictions: Dimension) -> tf.Tensor:
    """Draws [examples, predictions] int32 in [0, 2**23)."""
    halves = tf.zeros([examples, predictions, 2], tf.uint16)
    numbers = numbers_like(halves, dropout.draw(predictions * 2, 0.0, site=_SITE))
    return tf.bitwise.bitwise_and(tf.bitcast(numbers, tf.int32), (1 << _BITS) - 1)


def _as_uniform(bits: tf.Tensor) -> tf.Tensor:
    """Converts the lowest 23 bits of integers to float32 in [0, 1)."""
    lowest = tf.bitwise.bitwise_and(bits, (1 << _BITS) - 1)
    return tf.cast(lowest, tf.float32) * 2.0**-_BITS


def sample_classes(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Samples a class from each row's softmax: int32 [N]; no gradient flows through it.

    Clark et al. 2020 add Gumbel noise to every logit; inverting the cumulative distribution gives
    the same distribution with a single random number per row.

    Args:
      logits: [N, V] float32.
      uniform: [N] float32 in [0, 1), in steps of 2**-23.
    """
    cumulative = tf.cumsum(tf.nn.softmax(tf.stop_gradient(logits)), axis=-1)
    # At least one step below the total, so that a class is always found.
    wanted = uniform[:, tf.newaxis] * cumulative[:, -1:]
    return tf.searchsorted(cumulative, wanted, side="right")[:, 0]


def with_tokens_at(input_ids: tf.Tensor, positions: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Puts ``tokens`` [B, P] into ``input_ids`` [B, S] at ``positions`` [B, P]; all are integers.

    Padding predictions have position 0, that of [CLS], whose token is kept.
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
