"""Estimates repetitions among any number of items from 64-bit hashes, in bounded memory.

All hashes are kept while there is room. After that, only those divisible by a growing power of two
are kept: equal items are kept or dropped together, so the fraction of repetitions among the kept
hashes is an estimate for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

_MOST_KEPT = 1 << 21  # at most 200 MB while sorting


def hash_of(content: bytes) -> int:
    """A 64-bit hash; a million distinct contents have a collision in one of 10^7 cases."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class HashSample:
    """Distinct hashes and their counts, or a sample of them.

    Attributes:
      one_in: one in this many distinct hashes is kept; 1 means all.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        """Keeps at most ``most_kept`` distinct hashes."""
        self.one_in = 1
        self._most_kept = most_kept
        self._hashes = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)
        self._new: list[np.ndarray] = []
        self._num_new = 0

    def add(self, hashes: np.ndarray) -> None:
        """Adds hashes, uint64 [N]."""
        self._new.append(hashes)
        self._num_new += len(hashes)
        if self._num_new > self._most_kept // 4:
            self._collect()

    def counts(self) -> np.ndarray:
        """The count of each distinct hash in the sample, int64, in descending order."""
        self._collect()
        return np.sort(self._counts)[::-1]

    def repeated_share(self) -> float:
        """The fraction of hashes that repeat an earlier one; 0 if there are no hashes."""
        counts = self.counts()
        return 1 - len(counts) / int(counts.sum()) if len(counts) else 0.0

    def _collect(self) -> None:
        """Merges new hashes into the kept ones, and makes room."""
        everything = np.concatenate([self._hashes, *self._new])
        ones = np.ones(len(everything) - len(self._hashes), np.int64)
        self._hashes, places = np.unique(everything, return_inverse=True)
        counts = np.zeros(len(self._hashes), np.int64)
        np.add.at(counts, places, np.concatenate([self._counts, ones]))
        self._counts = counts
        self._new, self._num_new = [], 0
        self._keep_chosen()
        while len(self._hashes) > self._most_kept:
            self.one_in *= 2
            self._keep_chosen()

    def _keep_chosen(self) -> None:
        is_kept = self._hashes % np.uint64(self.one_in) == 0
        self._hashes, self._counts = self._hashes[is_kept], self._counts[is_kept]


def as_hashes(values: Iterable[int]) -> np.ndarray:
    """Converts results of :func:`hash_of` to an array."""
    return np.fromiter(values, np.uint64)
