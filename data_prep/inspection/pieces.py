"""Reads and checks the records of files piece by piece, on all cores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.records.layouts import (
    CLASSIFICATION_TRAINING,
    PRETRAINING_MASKED,
    PRETRAINING_UNMASKED,
    SEGMENTS,
    SQUAD_PREDICTION,
    SQUAD_TRAINING,
    TAGGING_PREDICTION,
    TAGGING_TRAINING,
    VOCABULARY,
    RecordSpec,
    decode_example,
    with_standard_names,
)
from bert_tf.records.tfrecord import RecordSet
from bert_tf.util.errors import UserError
from data_prep.inspection.record_statistics import Conventions, Statistics, count_records

# Those with more features first, since they have those of others, too. What is to be predicted has
# the same features for all tasks.
_SPECS = (
    PRETRAINING_UNMASKED,
    PRETRAINING_MASKED,
    SQUAD_TRAINING,
    CLASSIFICATION_TRAINING,
    TAGGING_TRAINING,
    TAGGING_PREDICTION,
    SQUAD_PREDICTION,
)
_NUM_SEGMENTS = 2
_RECORDS_AT_ONCE = 256
_RECORDS_OF_A_PIECE = 2048
_MOST_OPEN = 4

SpecAndLengths = tuple[RecordSpec, dict[str, int]]


class Piece(NamedTuple):
    """Some of the records of a file: numbers ``first`` to ``end`` - 1."""

    path: Path
    first: int
    end: int


class Counted(NamedTuple):
    """What was found in a piece.

    Attributes:
      piece: the piece.
      statistics: of the valid records before the first invalid one.
      problem: what is wrong with that one; None if all are valid.
    """

    piece: Piece
    statistics: Statistics
    problem: str | None


def pieces_of(path: Path, num_records: int) -> Iterator[Piece]:
    """The pieces of a file."""
    for first in range(0, num_records, _RECORDS_OF_A_PIECE):
        yield Piece(path, first, min(first + _RECORDS_OF_A_PIECE, num_records))


class PieceReader:
    """Checks and counts pieces; one in each worker process."""

    def __init__(self, conventions: Conventions, vocab_size: int) -> None:
        """Ids must be below ``vocab_size``."""
        self._conventions = conventions
        self._vocab_size = vocab_size
        self._open = functools.lru_cache(_MOST_OPEN)(lambda path: RecordSet([path]))

    def __call__(self, piece: Piece) -> Counted:
        """Reads a piece."""
        total, hashes = Statistics(), [np.zeros(0, np.uint64)]
        try:
            records = self._open(piece.path)
            layout, _ = decode_record(records, 0)
            for first in range(piece.first, piece.end, _RECORDS_AT_ONCE):
                numbers = range(first, min(first + _RECORDS_AT_ONCE, piece.end))
                batch = _checked_records(records, numbers, layout, vocab_size=self._vocab_size)
                found = count_records(batch, self._conventions)
                total.add(found)
                hashes.append(found.hashes)
        except UserError as error:
            return Counted(piece, _with_hashes(total, hashes), str(error))
        return Counted(piece, _with_hashes(total, hashes), None)


def _with_hashes(total: Statistics, hashes: list[np.ndarray]) -> Statistics:
    return dataclasses.replace(total, hashes=np.concatenate(hashes))


def decode_record(records: RecordSet, number: int) -> tuple[SpecAndLengths, dict[str, np.ndarray]]:
    """The layout of a record with its lengths, and its features; raises UserError."""
    [record] = records.read([number])
    try:
        example = with_standard_names(decode_example(record))
        spec = next((spec for spec in _SPECS if spec.matches(example)), PRETRAINING_MASKED)
        return (spec, spec.lengths_of(example)), {f.name: example[f.name] for f in spec.features}
    except ValueError as error:
        raise UserError(
            f"{_name_of(records, number)} is not a record for pre-training, SQuAD, classification "
            f"or labels of words ({error})"
        ) from error


def _checked_records(
    records: RecordSet, numbers: range, layout: SpecAndLengths, *, vocab_size: int
) -> dict[str, np.ndarray]:
    """Features [N, L]; UserError for a record that is damaged, of another layout or range."""
    spec, lengths = layout
    rows = []
    for number in numbers:
        row_layout, row = decode_record(records, number)
        if row_layout != layout:
            raise UserError(f"{_name_of(records, number)} differs from record 0 in layout")
        rows.append(row)
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    sizes = {**lengths, VOCABULARY: vocab_size, SEGMENTS: _NUM_SEGMENTS}
    problem = spec.out_of_range(batch, sizes)
    if problem is not None:
        wrong, what = problem
        raise UserError(f"{_name_of(records, numbers[wrong])} cannot be used: {what}")
    return batch


def _name_of(records: RecordSet, number: int) -> str:
    return f"record {number} of {records.files[0].path}"
