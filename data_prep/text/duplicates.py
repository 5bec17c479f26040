"""Finds equal and nearly equal documents of a corpus of any size, with bounded memory.

Documents are compared by sketches: an exact one, a hash of the whole text, and a MinHash signature
of its runs of words (Broder 1997, "On the resemblance and containment of documents"): the share of
equal values in two signatures estimates the Jaccard similarity of two documents' sets of runs. Only
documents that agree in one of several bands of their signatures are compared (Leskovec, Rajaraman,
Ullman: Mining of Massive Datasets, section 3.4).

Sketches are kept in a file. What is compared first, a hash of the text and one of each band, is put
into files of its own and sorted a part at a time. Nothing is mapped into memory, which would count
as memory of the process as far as it has been read.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.input.stateless_random import derive_keys, mix64, random_bits

_VALUES = 128
# A pair that is just similar enough is compared with at least this probability.
_LEAST_RECALL = 0.9
_WORDS_OF_RUN = 5
_MOST_RUNS = 1 << 16  # of a document; a longer one is sampled evenly
# Documents that agree in a band are compared with so many of those before them.
_MOST_COMPARED = 16
PART_DOCUMENTS = 1 << 21
CHUNK_DOCUMENTS = 1 << 14

_SKETCH = np.dtype([("exact", "<u8"), ("values", "<u4", (_VALUES,))])
_KEY = np.dtype("<u8")
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


def rows_of_band(threshold: float) -> int:
    """How many values of a signature make a band.

    Two documents of similarity s agree in one of b bands of r values with probability
    1 - (1 - s^r)^b. More values to a band mean fewer comparisons; these are the most with which a
    pair at the threshold is still compared with a probability of 0.9: 8 for 0.8, 3 for 0.5.
    """

    def recall(rows: int) -> float:
        return 1 - (1 - threshold**rows) ** (_VALUES // rows)

    return max(rows for rows in range(1, _VALUES + 1) if rows == 1 or recall(rows) >= _LEAST_RECALL)


def _bands(rows: int) -> list[slice]:
    """The bands of ``rows`` values that a signature has."""
    return [slice(first, first + rows) for first in range(0, _VALUES - rows + 1, rows)]


def find_duplicates(path: Path, *, threshold: float | None) -> Duplicates:
    """The documents that are like an earlier one.

    Args:
      path: the sketches of all documents, one after the other.
      threshold: the similarity from which documents are near duplicates; None for equal ones only.
    """
    with _Sketches(path) as sketches, tempfile.TemporaryDirectory(dir=path.parent) as directory:
        bands = [] if threshold is None else _bands(rows_of_band(threshold))
        exact_keys, *band_keys = sketches.write_keys(Path(directory), bands)
        exact = np.array(sorted(n for group in _groups(exact_keys) for n in group[1:]), np.int64)
        is_duplicate = np.zeros(len(sketches), bool)
        is_duplicate[exact] = True
        least = _VALUES if threshold is None else math.ceil(threshold * _VALUES)
        for keys in band_keys:
            for group in _groups(keys):
                _mark_similar(sketches, group[~is_duplicate[group]], least, is_duplicate)
    is_duplicate[exact] = False
    return Duplicates(exact, np.flatnonzero(is_duplicate))


def _mark_similar(
    sketches: _Sketches, group: np.ndarray, least: int, is_duplicate: np.ndarray
) -> None:
    """Marks the documents of a group with at least ``least`` values of one before them."""
    kept: list[np.ndarray] = []
    for number in group:
        own = sketches.values(number)
        if any(np.count_nonzero(own == other) >= least for other in kept):
            is_duplicate[number] = True
        elif len(kept) < _MOST_COMPARED:
            kept.append(own)


class _Sketches(contextlib.AbstractContextManager):
    """The sketches in a file, by number."""

    def __init__(self, path: Path):
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def __len__(self) -> int:
        return self._path.stat().st_size // _SKETCH.itemsize

    def values(self, number: int) -> np.ndarray:
        """The signature of one document: uint32."""
        data = os.pread(self._descriptor, _SKETCH.itemsize, int(number) * _SKETCH.itemsize)
        return np.frombuffer(data, _SKETCH)["values"][0]

    def write_keys(self, directory: Path, bands: Sequence[slice]) -> list[Path]:
        """Writes the exact hashes of all documents into a file, and those of each of the bands."""
        names = ["exact", *(f"band-{number}" for number in range(len(bands)))]
        paths = [directory / name for name in names]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            for chunk in _chunks(self._path, _SKETCH):
                files[0].write(chunk["exact"].tobytes())
                for band, file in zip(bands, files[1:]):
                    file.write(_hash_of_band(chunk["values"][:, band]).tobytes())
        return paths


def _hash_of_band(values: np.ndarray) -> np.ndarray:
    """A hash of the values of N documents in a band [N, rows]: uint64 [N]."""
    hashes = np.zeros(len(values), np.uint64)
    for column in values.T:
        hashes = mix64(hashes + mix64(column.astype(np.uint64)))
    return hashes


def _chunks(path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
    with open(path, "rb") as file:
        while data := file.read(CHUNK_DOCUMENTS * dtype.itemsize):
            yield np.frombuffer(data, dtype)


def _groups(path: Path) -> Iterator[np.ndarray]:
    """The numbers of the documents that share a key in a file, in order; only if several do.

    Keys are spread over parts by their value, and a part at a time is sorted.
    """
    parts = math.ceil(path.stat().st_size / _KEY.itemsize / PART_DOCUMENTS)
    for part in range(parts):
        found_keys, found_numbers, start = [], [], 0
        for chunk in _chunks(path, _KEY):
            chosen = np.flatnonzero(chunk % np.uint64(parts) == part)
            found_keys.append(chunk[chosen])
            found_numbers.append(chosen + start)
            start += len(chunk)
        of_part, numbers = np.concatenate(found_keys), np.concatenate(found_numbers)
        order = np.argsort(of_part, kind="stable")
        of_part, numbers = of_part[order], numbers[order]
        borders = np.flatnonzero(np.diff(of_part)) + 1
        starts, ends = np.append(0, borders), np.append(borders, len(of_part))
        for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1]):
            yield numbers[start:end]
