"""The order of the training data: a pure function of the seed and the position in training.

The records are read epoch after epoch; epoch e is a permutation of all records seeded by (seed, e).
Position p in training is global batch number p of that endless sequence, so batches cross epoch
boundaries, nothing is dropped, and a rank's part is a contiguous slice of the global batch. No
state is needed to resume from any position with any number of ranks; resuming with another global
batch size requires the number of consumed sequences. Global batches may grow (``ramps.py``): the
sizes of all earlier ones are summed in closed form.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from bert_tf.config.ramps import Ramp
from bert_tf.input.stateless_random import derive_keys, mix64, random_bits

_ROUNDS = 8
_CHUNK = 8192
_ORDER_STREAM = 0x6F72646572  # separates these draws from others with the same seed


@dataclasses.dataclass(frozen=True)
class GlobalBatchSlice:
    """The part of every global batch on which one rank trains.

    Attributes:
      global_batch_size: sequences in one update over all ranks and accumulation steps; with
        ``sizes``, those in the largest.
      rank: this rank, from 0.
      world_size: number of ranks; must divide the global batch size.
      origin: index in the endless sequence at which position 0 would begin. It is 0 except in a
        run that resumed with another global batch size, whose positions must continue where it
        stopped.
      sizes: the global batch size at each position; None if all are equal.
    """

    global_batch_size: int
    rank: int = 0
    world_size: int = 1
    origin: int = 0
    sizes: Ramp | None = None

    def __post_init__(self) -> None:
        for size in (self.global_batch_size, *(self.sizes.values if self.sizes else ())):
            if size < 1 or size % self.world_size:
                raise ValueError(
                    f"a global batch of {size} cannot be divided among {self.world_size} ranks"
                )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}")

    @property
    def size(self) -> int:
        """Number of sequences in one update on this rank."""
        return self.global_batch_size // self.world_size

    @property
    def constant_size(self) -> int | None:
        """Number of sequences in every update on this rank; None if it differs between updates."""
        return self.size if self.sizes is None else None

    @property
    def start(self) -> int:
        """Index of this rank's first sequence in the global batch."""
        return self.rank * self.size

    def at(self, position: int) -> GlobalBatchSlice:
        """The slice of the global batch at ``position``, for its size and place only."""
        if self.sizes is None:
            return self
        size = self.sizes.at(position)
        return GlobalBatchSlice(size, self.rank, self.world_size, self.origin)

    def first_sequence(self, position: int) -> int:
        """Index of a global batch's first sequence in the endless sequence."""
        if self.sizes is None:
            return self.origin + position * self.global_batch_size
        return self.origin + self.sizes.total(0, position)


def epoch_permutation(
    seed: int, epoch: int, num_records: int, *, start: int = 0, stop: int | None = None
) -> np.ndarray:
    """Elements [start, stop) of the order of one epoch: int64 record numbers.

    Up to 8,192 records are ordered by one random number each. Larger permutations are computed
    element by element, in constant memory: a keyed Feistel network permutes the smallest power of
    two that is at least ``num_records``, and numbers outside are sent through it again until they
    fall inside (Black, Rogaway: Ciphers with Arbitrary Finite Domains, CT-RSA 2002, cycle-walking).
    """
    stop = num_records if stop is None else stop
    if not 0 <= start <= stop <= num_records:
        raise ValueError(f"elements {start} to {stop} of a permutation of {num_records}")
    key = derive_keys(seed, _ORDER_STREAM, epoch)
    if num_records <= _CHUNK:
        return np.argsort(random_bits(key, num_records)[0], kind="stable")[start:stop]
    round_keys = random_bits(key, _ROUNDS)[0]
    bits = (num_records - 1).bit_length()
    values = np.arange(start, stop, dtype=np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], round_keys, bits)
        outside = outside[values[outside] >= num_records]
    return values.astype(np.int64)


def _feistel(values: np.ndarray, keys: np.ndarray, bits: int) -> np.ndarray:
    """Permutes the integers of ``bits`` bits; the two halves change alternately."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for turn, key in enumerate(keys):
        if turn % 2:
            low = low ^ (mix64(high ^ key) & low_mask)
        else:
            high = high ^ (mix64(low ^ key) & high_mask)
    return (high << low_bits) | low


@functools.lru_cache(maxsize=8)
def _chunk_of_epoch(seed: int, epoch: int, num_records: int, chunk: int) -> np.ndarray:
    """A chunk of an epoch's order, cached because small batches would recompute it repeatedly."""
    start = chunk * _CHUNK
    stop = min(start + _CHUNK, num_records)
    order = epoch_permutation(seed, epoch, num_records, start=start, stop=stop)
    order.flags.writeable = False
    return order


def sequence_indices(start: int, count: int, *, num_records: int, seed: int) -> np.ndarray:
    """Record numbers of elements [start, start + count) of the endless sequence: int64 [count]."""
    if num_records < 1:
        raise ValueError("there are no records to order")
    parts = []
    while count > 0:
        epoch, element = divmod(start, num_records)
        chunk, first = divmod(element, _CHUNK)
        part = _chunk_of_epoch(seed, epoch, num_records, chunk)[first : first + count]
        parts.append(part)
        start += len(part)
        count -= len(part)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def batch_indices(
    position: int, batch: GlobalBatchSlice, *, num_records: int, seed: int
) -> np.ndarray:
    """Record numbers of a rank's part of the global batch at ``position``: int64 [size]."""
    part = batch.at(position)
    first = batch.first_sequence(position) + part.start
    return sequence_indices(first, part.size, num_records=num_records, seed=seed)
