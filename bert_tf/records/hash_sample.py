"""Finds equal things among any number of them by 64-bit hashes, in bounded memory.

All hashes are kept as long as there is room. After that only those are kept that a growing power of
two divides: equal things are kept or left out together, so the share of repetitions among those
kept estimates that among all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

_MOST_KEPT = 1 << 21  # at most 200 MB while they are sorted


def hash_of(content: bytes) -> int:
    """A 64-bit hash; two of a million different contents are equal in one of 10^7 cases."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class HashSample:
    """Different hashes, with how often each of them occurs, or a sample of them.

    Attributes:
      one_in: the share of different hashes that is kept is one in so many; 1 for all.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        """Keeps at most ``most_kept`` different hashes."""
        self.one_in = 1
        self._most_kept = most_kept
        self._hashes = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)
        self._new: list[np.ndarray] = []
        self._num_new = 0

    def add(self, hashes: np.ndarray) -> None:
        """Adds uint64 [N]."""
        self._new.append(hashes)
        self._num_new += len(hashes)
        if self._num_new > self._most_kept // 4:
            self._collect()

    def counts(self) -> np.ndarray:
        """How often each different hash of the sample occurs, the most frequent first; int64."""
        self._collect()
        return np.sort(self._counts)[::-1]

    def repeated_share(self) -> float:
        """The share of hashes that are repetitions of an earlier one; 0 without any."""
        counts = self.counts()
        return 1 - len(counts) / int(counts.sum()) if len(counts) else 0.0

    def _collect(self) -> None:
        """Adds the new hashes to those that are kept, and makes room."""
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
    """Results of :func:`hash_of` as an array."""
    return np.fromiter(values, np.uint64)
