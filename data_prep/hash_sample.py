"""Finds equal things among any number of them by 64-bit hashes, in bounded memory.

All hashes are kept as long as there is room. After that only those are kept that a growing power of
two divides: equal things are kept or left out together, so the share of repetitions among those
kept estimates that among all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

_MOST_KEPT = 1 << 22  # 32 MiB


def hash_of(content: bytes) -> int:
    """A 64-bit hash; two of a million different contents are equal in one of 10^7 cases."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class HashSample:
    """A sample of hashes.

    Attributes:
      one_in: the share of different hashes that is kept is one in so many; 1 for all.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self.one_in = 1
        self._most_kept = most_kept
        self._parts: list[np.ndarray] = []
        self._num_kept = 0

    def add(self, hashes: np.ndarray) -> None:
        """Adds uint64 [N]."""
        self._keep(self._chosen(hashes))
        while self._num_kept > self._most_kept:
            self.one_in *= 2
            kept, self._parts, self._num_kept = self._parts, [], 0
            for part in kept:
                self._keep(self._chosen(part))

    def counts(self) -> np.ndarray:
        """How often each different hash of the sample occurs, the most frequent first; int64."""
        found = np.concatenate([np.zeros(0, np.uint64), *self._parts])
        return np.sort(np.unique(found, return_counts=True)[1])[::-1]

    def repeated_share(self) -> float:
        """The share of hashes that are repetitions of an earlier one; 0 without any."""
        return 1 - len(self.counts()) / self._num_kept if self._num_kept else 0.0

    def _chosen(self, hashes: np.ndarray) -> np.ndarray:
        return hashes[hashes % np.uint64(self.one_in) == 0]

    def _keep(self, hashes: np.ndarray) -> None:
        self._parts.append(hashes)
        self._num_kept += len(hashes)


def as_hashes(values: Iterable[int]) -> np.ndarray:
    """Results of :func:`hash_of` as an array."""
    return np.fromiter(values, np.uint64)
