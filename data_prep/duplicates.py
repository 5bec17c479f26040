"""Finds equal and nearly equal documents of a corpus of any size, with bounded memory.

Documents are compared by sketches: an exact one, a hash of the whole text, and a MinHash signature
of its runs of words (Broder 1997, "On the resemblance and containment of documents"): the share of
equal values in two signatures estimates the Jaccard similarity of two documents' sets of runs. Only
documents that agree in one of several bands of their signatures are compared (Leskovec, Rajaraman,
Ullman: Mining of Massive Datasets, section 3.4).

Sketches are kept in a file and are sorted a part at a time.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.input.stateless_random import derive_keys, mix64, random_bits

# A pair of similarity s is compared with probability 1 - (1 - s ** rows) ** bands: 0.95 for 0.8,
# 0.06 for 0.5.
_BANDS, _ROWS = 16, 8
_VALUES = _BANDS * _ROWS
_WORDS_OF_RUN = 5
_MOST_RUNS = 1 << 16  # of a document; a longer one is sampled evenly
# Documents that agree in a band are compared with so many of those before them.
_MOST_COMPARED = 16
_PART_DOCUMENTS = 1 << 22
_CHUNK_DOCUMENTS = 1 << 18

_SKETCH = np.dtype([("exact", "<u8"), ("values", "<u4", (_VALUES,))])
_KEYS = random_bits(derive_keys(0, 0x6D696E68617368), _VALUES)[0]


class Duplicates(NamedTuple):
    """Numbers of the documents that are like an earlier one, in order: int64 each.

    Attributes:
      exact: those that are equal to an earlier one but for case and white space.
      near: those, not in ``exact``, that are similar to an earlier one.
    """

    exact: np.ndarray
    near: np.ndarray


def sketch(text: str, *, near: bool) -> bytes:
    """What is compared of a document; without ``near``, only equal ones will be found."""
    words = text.casefold().split()
    found = np.zeros(1, _SKETCH)
    digest = hashlib.blake2b(" ".join(words).encode("utf-8"), digest_size=8).digest()
    found["exact"] = int.from_bytes(digest, "little")
    if near:
        found["values"] = _signature(words)
    return found.tobytes()


def _signature(words: list[str]) -> np.ndarray:
    """The least value of each of several hash functions over the runs of words: uint32."""
    runs = _hashes_of_runs(words)
    if len(runs) > _MOST_RUNS:
        runs = runs[:: math.ceil(len(runs) / _MOST_RUNS)]
    least = np.full(_VALUES, np.iinfo(np.uint64).max, np.uint64)
    for part in np.array_split(runs, math.ceil(len(runs) / 1024)):
        least = np.minimum(least, mix64(part[:, None] ^ _KEYS).min(axis=0))
    return (least >> np.uint64(32)).astype(np.uint32)


def _hashes_of_runs(words: list[str]) -> np.ndarray:
    hashes = [zlib.crc32(word.encode("utf-8")) for word in words] or [0]
    of_words = mix64(np.array(hashes, np.uint64))
    count = max(1, len(of_words) - _WORDS_OF_RUN + 1)
    runs = np.zeros(count, np.uint64)
    for place in range(min(_WORDS_OF_RUN, len(of_words))):
        runs = mix64(runs + of_words[place : place + count])
    return np.unique(runs)


def find_duplicates(path: Path, *, threshold: float | None) -> Duplicates:
    """The documents that are like an earlier one.

    Args:
      path: the sketches of all documents, one after the other.
      threshold: the similarity from which documents are near duplicates; None for equal ones only.
    """
    if not path.stat().st_size:
        return Duplicates(np.empty(0, np.int64), np.empty(0, np.int64))
    sketches = np.memmap(path, _SKETCH, mode="r")
    exact = np.unique(np.concatenate([group[1:] for group in _groups(sketches["exact"])] or [[]]))
    exact = exact.astype(np.int64)
    if threshold is None:
        return Duplicates(exact, np.empty(0, np.int64))
    is_duplicate = np.zeros(len(sketches), bool)
    is_duplicate[exact] = True
    values, least = sketches["values"], math.ceil(threshold * _VALUES)
    for band in range(_BANDS):
        for group in _groups(_Band(values, band)):
            _mark_similar(values, group[~is_duplicate[group]], least, is_duplicate)
    is_duplicate[exact] = False
    return Duplicates(exact, np.flatnonzero(is_duplicate))


def _mark_similar(
    values: np.ndarray, group: np.ndarray, least: int, is_duplicate: np.ndarray
) -> None:
    """Marks the documents of a group with at least ``least`` values of one before them."""
    kept: list[np.ndarray] = []
    for number in group:
        own = values[number]
        if any(np.count_nonzero(own == other) >= least for other in kept):
            is_duplicate[number] = True
        elif len(kept) < _MOST_COMPARED:
            kept.append(own)


class _Band:
    """A hash of a band of each signature, computed as it is read."""

    def __init__(self, values: np.ndarray, band: int):
        self._values = values
        self._columns = slice(band * _ROWS, (band + 1) * _ROWS)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> np.ndarray:
        part = self._values[rows, self._columns].astype(np.uint64)
        hashes = np.zeros(len(part), np.uint64)
        for column in part.T:
            hashes = mix64(hashes + mix64(column))
        return hashes


def _groups(keys: np.ndarray | _Band) -> Iterator[np.ndarray]:
    """The numbers of the documents that share a key, in order; only if there are several.

    Keys are spread over parts by their value, and a part at a time is sorted.
    """
    parts = math.ceil(len(keys) / _PART_DOCUMENTS)
    for part in range(parts):
        found_keys, found_numbers = [], []
        for start in range(0, len(keys), _CHUNK_DOCUMENTS):
            chunk = np.asarray(keys[start : start + _CHUNK_DOCUMENTS])
            chosen = np.flatnonzero(chunk % np.uint64(parts) == part)
            found_keys.append(chunk[chosen])
            found_numbers.append(chosen + start)
        of_part, numbers = np.concatenate(found_keys), np.concatenate(found_numbers)
        order = np.argsort(of_part, kind="stable")
        of_part, numbers = of_part[order], numbers[order]
        borders = np.flatnonzero(np.diff(of_part)) + 1
        starts, ends = np.append(0, borders), np.append(borders, len(of_part))
        for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1]):
            yield numbers[start:end]
