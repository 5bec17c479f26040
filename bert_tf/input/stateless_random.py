"""Random numbers that are a pure function of a seed and some counters, drawn for whole arrays.

No generator objects are needed, so a draw for (seed, position, index) does not depend on earlier
draws, ranks, or the version of numpy. The mixing function is the finalizer of SplitMix64 (Steele,
Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014); a stream adds that paper's
golden-ratio increment to its key for every draw.
"""

from __future__ import annotations

from typing import Union

import numpy as np

IntegerArray = Union[int, np.ndarray]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


def mix64(values: np.ndarray) -> np.ndarray:
    """A bijection of uint64 in which every input bit flips about half of the output bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derive_keys(seed: int, *counters: IntegerArray) -> np.ndarray:
    """Keys of independent streams, one per element of the broadcast counters.

    Args:
      seed: any integer; only its low 64 bits count.
      *counters: non-negative integers or integer arrays, for example a position in the training
        and the indices of the examples in its batch. Their order matters.

    Returns:
      uint64 array of the broadcast shape of the counters, at least one-dimensional.
    """
    keys = mix64(np.array([seed & _WORD], np.uint64) + _GOLDEN)
    for counter in counters:
        words = np.atleast_1d(np.asarray(counter)).astype(np.uint64)
        keys = mix64(mix64(keys + _GOLDEN) ^ (words + _GOLDEN))
    return keys


def random_bits(keys: np.ndarray, count: int) -> np.ndarray:
    """The first ``count`` draws of every key's stream: uint64, shape ``keys.shape + (count,)``."""
    return random_bits_at(keys[..., None], np.arange(count))


def random_bits_at(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Draw ``numbers`` (0: the first) from the streams of ``keys``, broadcast together: uint64."""
    return mix64(keys + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def bits_to_uniform(bits: np.ndarray) -> np.ndarray:
    """Maps uint64 to float64 in [0, 1) with 53 random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bits_to_integers(bits: np.ndarray, bound: IntegerArray) -> np.ndarray:
    """Maps uint64 to int64 in [0, bound); the bias is below bound / 2**53."""
    return np.floor(bits_to_uniform(bits) * bound).astype(np.int64)


def sort_keys(bits: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Keys that bring the candidates of each row into random order, before all others.

    Args:
      bits: uint64 [B, S], which the order follows from.
      candidates: bool [B, S].

    Returns:
      uint64 [B, S] and the mask of the lowest bits, which are the column: no two keys of a row are
      equal, so that every sorting algorithm gives the same order.
    """
    num_columns = bits.shape[1]
    column_mask = np.uint64((1 << (num_columns - 1).bit_length()) - 1)
    keys = (bits >> np.uint64(1)) & ~column_mask
    keys |= (~candidates).astype(np.uint64) << np.uint64(63)
    return keys | np.arange(num_columns, dtype=np.uint64), column_mask
