"""Reads the Parquet shards of NVIDIA's LDDL (lddl/dask/bert/pretrain.py).

A row has two segments as vocabulary entries with blanks between them (``A``, ``B``),
``is_random_next``, and, with stored masks, ``masked_lm_positions`` (bytes of ``numpy.save``) and
``masked_lm_labels``.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from bert_tf.records.layouts import (
    ONE,
    PREDICTIONS,
    PRETRAINING_MASKED,
    PRETRAINING_UNMASKED,
    SEQUENCE,
)
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.errors import UserError
from data_prep.conversion.record_masks import word_starts
from data_prep.conversion.record_rows import Examples, Layout

COLUMNS = ("A", "B", "is_random_next")
_MASK_COLUMNS = ("masked_lm_positions", "masked_lm_labels")


def is_lddl(names: Sequence[str]) -> bool:
    """Whether a Parquet file with these columns is LDDL's."""
    return set(COLUMNS) <= set(names)


def columns_of(names: Sequence[str]) -> list[str]:
    """The columns to read."""
    return [*COLUMNS, *(name for name in _MASK_COLUMNS if name in names)]


def lddl_layout(names: Sequence[str], *, seq_length: int, max_predictions: int) -> Layout:
    """The layout of the records that are made of such rows."""
    lengths = {SEQUENCE: seq_length, ONE: 1}
    if set(_MASK_COLUMNS) <= set(names):
        return Layout(PRETRAINING_MASKED, {**lengths, PREDICTIONS: max_predictions})
    return Layout(PRETRAINING_UNMASKED, lengths)


def examples_from_lddl(
    rows: Sequence[dict[str, Any]],
    layout: Layout,
    tokenizer: Tokenizer,
    starts_word: np.ndarray,
    name_of: Callable[[int], str],
) -> Examples:
    """Arrays of rows; raises UserError for one that is too long or has unknown entries."""
    shape = (len(rows), layout.lengths[SEQUENCE])
    ids = np.full(shape, tokenizer.pad_id, np.int64)
    mask, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    labels = np.zeros((len(rows), 1), np.int64)
    for number, row in enumerate(rows):
        a, b = (_ids(row[name], tokenizer, name_of(number)) for name in ("A", "B"))
        tokens = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
        _require_room("max_seq_length", len(tokens), shape[1], name_of(number))
        ids[number, : len(tokens)] = tokens
        mask[number, : len(tokens)] = 1
        segments[number, len(a) + 2 : len(tokens)] = 1
        if row["is_random_next"] not in (False, True):
            raise UserError(
                f"--input_file: {name_of(number)} has an is_random_next that is neither true nor "
                "false; make it again."
            )
        labels[number] = row["is_random_next"]
    examples = {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": segments,
        "next_sentence_labels": labels,
    }
    if layout.has_masks:
        return {**examples, **_masks(rows, layout, tokenizer, name_of)}
    return {**examples, "word_starts": word_starts(ids, mask, starts_word, tokenizer.sep_id)}


def _masks(
    rows: Sequence[dict[str, Any]],
    layout: Layout,
    tokenizer: Tokenizer,
    name_of: Callable[[int], str],
) -> Examples:
    shape = (len(rows), layout.lengths[PREDICTIONS])
    positions, label_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    weights = np.zeros(shape, np.float32)
    for number, row in enumerate(rows):
        labels = _ids(row["masked_lm_labels"], tokenizer, name_of(number))
        try:
            places = np.lib.format.read_array(
                io.BytesIO(row["masked_lm_positions"]), allow_pickle=False
            )
            if places.dtype.kind not in "iu":
                raise ValueError(f"numbers of type {places.dtype}")
        except (ValueError, EOFError, TypeError, MemoryError, tokenize.TokenError) as error:
            raise UserError(
                f"--input_file: {name_of(number)} has damaged masked_lm_positions; make it again."
            ) from error
        if places.shape != (len(labels),):
            raise UserError(
                f"--input_file: {name_of(number)} has {places.size} masked_lm_positions but "
                f"{len(labels)} masked_lm_labels; make it again."
            )
        _require_room("max_predictions_per_seq", len(labels), shape[1], name_of(number))
        positions[number, : len(labels)] = places
        label_ids[number, : len(labels)] = labels
        weights[number, : len(labels)] = 1
    return {
        "masked_lm_positions": positions,
        "masked_lm_ids": label_ids,
        "masked_lm_weights": weights,
    }


def _ids(text: Any, tokenizer: Tokenizer, where: str) -> list[int]:
    if not isinstance(text, str):
        raise UserError(f"--input_file: {where} lacks text in a column; make it again.")
    try:
        return tokenizer.convert_tokens_to_ids(text.split())
    except UserError as error:
        raise UserError(
            f"--input_file: {where} was made with another vocabulary: {error}"
        ) from error


def _require_room(flag: str, needed: int, given: int, where: str) -> None:
    if needed > given:
        raise UserError(f"--{flag}={given}: {where} needs {needed}; give at least that.")
