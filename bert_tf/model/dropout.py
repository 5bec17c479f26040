"""Dropout whose masks are a pure function of the seed and the position in the global batch.

In each update, every call site of the network draws one stream of random bits. The stream covers
all examples of the *global* batch in order, so a rank or micro batch with the examples ``[p, p +
b)`` draws exactly that slice, however the global batch is split, and a resumed run draws the same
masks as an uninterrupted one.

The generator is Philox-4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"):
block ``i`` of a stream is a function of (key, counter + i) and holds eight 16-bit numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.layers import Dimension, shape_of

_PHILOX = 1
_WORDS_PER_BLOCK = 4  # of 32 bits
_NUMBERS_PER_BLOCK = 8  # of 16 bits
_LEVELS = 1 << 16
_SITE_BITS = 16


class Draw(NamedTuple):
    """The state that determines the masks of one call site in one micro batch.

    Attributes:
      key: [1] uint64, the key of Philox.
      counter: [2] uint64, low and high half of the first block's counter.
      threshold: elements whose number in [0, 2**16) is below it are dropped; 0 drops nothing.
    """

    key: tf.Tensor
    counter: tf.Tensor
    threshold: int


def nothing_dropped() -> Draw:
    """A draw that drops nothing."""
    return Draw(tf.zeros([1], tf.uint64), tf.zeros([2], tf.uint64), 0)


class Dropout:
    """Draws the masks of one micro batch.

    Args:
      seed: the run's seed, 64 bits.
      data_position: scalar int64 tensor, the index of the global batch (below 2**47).
      first_example: scalar int64 tensor, where this micro batch starts within the global batch.
    """

    def __init__(self, seed: int, *, data_position: tf.Tensor, first_example: tf.Tensor):
        self._seed = seed % (1 << 64)
        self._data_position = data_position
        self._first_example = first_example

    @property
    def place(self) -> tuple[tf.Tensor, tf.Tensor]:
        """``data_position`` and ``first_example``, the tensors that the masks depend on."""
        return self._data_position, self._first_example

    def at(self, data_position: tf.Tensor, first_example: tf.Tensor) -> Dropout:
        """This dropout at another place."""
        return Dropout(self._seed, data_position=data_position, first_example=first_example)

    def apply(self, x: tf.Tensor, rate: float, *, site: int) -> tf.Tensor:
        """Zeroes elements of ``x`` with probability ``rate`` and scales up the others.

        Args:
          x: [examples, ...] floats.
          rate: in [0, 1), rounded to a multiple of 2**-16. The scale uses the rounded rate, so
            the expected value of the result is exactly ``x``.
          site: number of the call site in [0, 2**16); each has its own stream of bits.
        """
        if round(rate * _LEVELS) == 0:
            return x
        draw = self.draw(math.prod(shape_of(x)[1:]), rate, site=site)
        keep = numbers_like(x, draw) >= tf.constant(draw.threshold, tf.uint16)
        scale = _LEVELS / (_LEVELS - draw.threshold)
        return x * (tf.cast(keep, x.dtype) * tf.constant(scale, x.dtype))

    def draw(self, elements: Dimension, rate: float, *, site: int) -> Draw:
        """The draw used by :meth:`apply` for examples of ``elements`` numbers each."""
        if not 0 <= site < 1 << _SITE_BITS:
            raise ValueError(f"dropout site {site} is outside [0, 2**{_SITE_BITS})")
        low = self._first_example * tf.cast(_num_blocks(elements), tf.int64)
        high = tf.bitwise.left_shift(self._data_position, tf.constant(_SITE_BITS, tf.int64)) + site
        return Draw(
            key=tf.constant([self._seed], tf.uint64),
            counter=tf.bitcast(tf.stack([low, high]), tf.uint64),
            threshold=round(rate * _LEVELS),
        )


def _num_blocks(elements: Dimension) -> Dimension:
    """Philox blocks per example; each example starts at a new block."""
    return (elements + _NUMBERS_PER_BLOCK - 1) // _NUMBERS_PER_BLOCK


def numbers_like(x: tf.Tensor, draw: Draw) -> tf.Tensor:
    """Uniform uint16 numbers in the shape of ``x``, [examples, ...]."""
    examples, *rest = shape_of(x)
    elements: Dimension = math.prod(rest)
    blocks = _num_blocks(elements)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.stack([examples * blocks * _WORDS_PER_BLOCK]),
        key=draw.key,
        counter=draw.counter,
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    numbers = tf.reshape(tf.bitcast(words, tf.uint16), [examples, blocks * _NUMBERS_PER_BLOCK])
    return tf.reshape(numbers[:, :elements], shape_of(x))


def apply_dropout(dropout: Dropout | None, x: tf.Tensor, rate: float, *, site: int) -> tf.Tensor:
    """Dropout in training; returns ``x`` itself if ``dropout`` is None (evaluation, prediction)."""
    return x if dropout is None else dropout.apply(x, rate, site=site)
