"""Batches of sequences of similar length, to minimize padding, and random ones.

The order is a pure function of the seed and the position in training. Records are taken in the
order of order.py, epoch after epoch. A *pool* consists of a few tens of consecutive global batches:
its records are sorted by length and divided into global batches, which are visited in random order.
Pools do not cross epoch boundaries (by more than a batch), so training for whole epochs sees every
record equally often.

A batch is padded to a multiple of ``LENGTH_STEP`` tokens, or of half of that up to
``SHORT_LENGTH``: products of fewer tokens would not be faster (docs/measurements/padding.md). Where
XLA compiles a network for each length, which takes up to a minute, there are only ``FEW_LENGTHS``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.input.order import GlobalBatchSlice, batch_indices, sequence_indices
from bert_tf.input.stateless_random import derive_keys, random_bits

LENGTH_STEP = 16
SHORT_LENGTH = 64
FEW_LENGTHS = 4

_BATCHES_IN_A_POOL = 32
_POOL_STREAM = 0x706F6F6C  # separates these draws from others with the same seed


class LengthBuckets:
    """The records in every global batch of training, and the length to which it is padded."""

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        global_batch_size: int,
        seed: int,
        max_length: int,
        origin: int = 0,
        sequence: Callable[[int, int], np.ndarray] | None = None,
        few_lengths: bool = False,
    ):
        """Orders records.

        Args:
          lengths: integers [N], number of tokens in each record without padding.
          global_batch_size: sequences in one update.
          seed: determines the order.
          max_length: sequence length of a stored record; batches are not padded beyond.
          origin: as in :class:`~bert_tf.input.order.GlobalBatchSlice`, rounded up to a whole
            batch. A run that resumes with a different global batch size regroups the rest of its
            pool: some records of that pool are then seen twice in the epoch and some not at all.
          sequence: maps the start and the number of elements of the endless sequence to their
            record numbers, if the order is another than ``sequence_indices``. A pool contains
            consecutive elements, in any order.
          few_lengths: pad batches to one of ``FEW_LENGTHS`` lengths; the order stays the same.
        """
        if not len(lengths):
            raise ValueError("there are no records to order")
        self._lengths = np.asarray(lengths)
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._max_length = max_length
        self._few_lengths = few_lengths
        self._first_batch = -(-origin // global_batch_size)
        self._sequence = sequence or functools.partial(
            sequence_indices, num_records=len(lengths), seed=seed
        )
        # A pool is needed by each of its batches, and by several threads.
        self._pool = functools.lru_cache(maxsize=4)(self._make_pool)

    def indices(self, position: int, batch: GlobalBatchSlice) -> np.ndarray:
        """Record numbers of a rank's part of the global batch at ``position``: int64 [size]."""
        return self._global_batch(position)[batch.start : batch.start + batch.size]

    def padded_length(self, position: int) -> int:
        """Sequence length of the global batch at ``position``, on all ranks."""
        longest = int(self._lengths[self._global_batch(position)].max())
        return padded_length(longest, max_length=self._max_length, few=self._few_lengths)

    def typical_lengths(self, most_sampled: int = 1 << 20) -> list[int]:
        """Padded lengths of the first epoch's batches, or of ``most_sampled`` of its sequences."""
        batches = max(1, len(self._lengths) // self._global_batch_size)
        pools = most_sampled // (_BATCHES_IN_A_POOL * self._global_batch_size)
        places = np.linspace(0, batches - 1, min(max(1, pools), batches)).astype(int)
        found = []
        for first, stop in sorted({self._pool_around(place) for place in places.tolist()}):
            longest = self._lengths[self._pool(first, stop)].max(axis=1)
            found += [
                padded_length(n, max_length=self._max_length, few=self._few_lengths)
                for n in longest.tolist()
            ]
        return found

    def _global_batch(self, position: int) -> np.ndarray:
        number = self._first_batch + position
        first, stop = self._pool_around(number)
        return self._pool(first, stop)[number - first]

    def _pool_around(self, position: int) -> tuple[int, int]:
        """The first position of the pool that contains ``position``, and the first after it."""
        records, batch = len(self._lengths), self._global_batch_size
        epoch = position * batch // records
        first, stop = -(-epoch * records // batch), -(-(epoch + 1) * records // batch)
        pools = max(1, round((stop - first) / _BATCHES_IN_A_POOL))
        borders = first + np.arange(pools + 1) * (stop - first) // pools
        pool = int(np.searchsorted(borders, position, side="right")) - 1
        return int(borders[pool]), int(borders[pool + 1])

    def _make_pool(self, first: int, stop: int) -> np.ndarray:
        """Record numbers [stop - first, global batch size] of a whole pool."""
        batches, size = stop - first, self._global_batch_size
        records = self._sequence(first * size, batches * size)
        by_length = records[np.argsort(self._lengths[records], kind="stable")]
        key = derive_keys(self._seed, _POOL_STREAM, first)
        visited = np.argsort(random_bits(key, batches)[0], kind="stable")
        return by_length.reshape(batches, size)[visited]


class ShuffledBatches:
    """Records in random order, and the length to which every global batch is padded."""

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        global_batch_size: int,
        seed: int,
        max_length: int,
        origin: int = 0,
        few_lengths: bool = False,
    ):
        """The arguments are those of :class:`LengthBuckets`."""
        self._lengths = np.asarray(lengths)
        self._seed = seed
        self._max_length = max_length
        self._few_lengths = few_lengths
        self._whole = GlobalBatchSlice(global_batch_size, origin=origin)

    def indices(self, position: int, batch: GlobalBatchSlice) -> np.ndarray:
        """Record numbers of a rank's part of the global batch at ``position``: int64 [size]."""
        return batch_indices(position, batch, num_records=len(self._lengths), seed=self._seed)

    def padded_length(self, position: int) -> int:
        """Sequence length of the global batch at ``position``, on all ranks."""
        longest = int(self._lengths[self.indices(position, self._whole)].max())
        return padded_length(longest, max_length=self._max_length, few=self._few_lengths)


class LengthSortedBatches:
    """Batches for prediction: every record once, over all ranks, longest first.

    All ranks have the same number of batches; the last ones are filled with the last record.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        batch_size: int,
        max_length: int,
        rank: int,
        world_size: int,
        few_lengths: bool = False,
    ):
        """Divides the records into batches; ranks alternate, so that lengths are balanced.

        Args:
          lengths: integers [N], number of tokens in each record without padding.
          batch_size: sequences in one batch of one rank.
          max_length: sequence length of a stored record.
          rank: this rank.
          world_size: number of ranks.
          few_lengths: as in :class:`LengthBuckets`.
        """
        self._few_lengths = few_lengths
        self._lengths = np.asarray(lengths)
        self._order = np.argsort(-self._lengths, kind="stable")
        self._batch_size = batch_size
        self._max_length = max_length
        self._rank, self._world_size = rank, world_size
        self.num_batches = -(-len(self._lengths) // (batch_size * world_size))

    def indices(self, number: int) -> np.ndarray:
        """Record numbers of this rank's batch ``number``: int64 [batch_size]."""
        return self._order[np.minimum(self._places(number), len(self._order) - 1)]

    def is_record(self, number: int) -> np.ndarray:
        """Whether each place in a batch holds a record rather than filling: bool [batch_size]."""
        return self._places(number) < len(self._order)

    def padded_length(self, number: int) -> int:
        """Sequence length of this rank's batch ``number``."""
        longest = int(self._lengths[self.indices(number)].max())
        return padded_length(longest, max_length=self._max_length, few=self._few_lengths)

    def _places(self, number: int) -> np.ndarray:
        first = (number * self._world_size + self._rank) * self._batch_size
        return np.arange(first, first + self._batch_size)


def padded_length(length: int, *, max_length: int, few: bool = False) -> int:
    """The length to which ``length`` tokens are padded, at most ``max_length``.

    With ``few`` there are at most ``FEW_LENGTHS`` lengths.
    """
    if few:
        step = -(-max_length // FEW_LENGTHS)
        return min(-(-length // step) * step, max_length)
    step = LENGTH_STEP if length > SHORT_LENGTH else LENGTH_STEP // 2
    return min(-(-length // step) * step, max_length)


def in_record_order(
    parts: Sequence[tuple[np.ndarray, Mapping[str, np.ndarray]]], num_records: int
) -> dict[str, np.ndarray]:
    """Merges (record numbers, predictions) of batches into arrays in the order of the records.

    Predictions of batches with fewer positions are padded with zeros.
    """
    arrays: dict[str, np.ndarray] = {}
    for name in parts[0][1]:
        values = [(numbers, found[name]) for numbers, found in parts]
        shape = np.max([value.shape[1:] for _, value in values], axis=0, initial=0)
        arrays[name] = np.zeros((num_records, *shape.astype(int)), values[0][1].dtype)
        for numbers, value in values:
            part: tuple[Any, ...] = (numbers, *map(slice, value.shape[1:]))
            arrays[name][part] = value
    return arrays
