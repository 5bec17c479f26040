"""Draws masks for records without them, and takes stored masks out again.

Symbols: N records, S positions.
"""

from __future__ import annotations

import numpy as np

from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.records.layouts import WORD_STARTS
from data_prep.conversion.record_rows import Examples


def draw_masks(
    examples: Examples, settings: MaskingSettings, seed: int, file: int, numbers: np.ndarray
) -> Examples:
    """Stored masks in place of ``word_starts``; a record's depend on its file and number [N]."""
    masked = mask_batch(
        examples["input_ids"],
        examples["input_mask"].sum(axis=1),
        keys=example_keys(seed, file, numbers),
        settings=settings,
        word_starts=examples[WORD_STARTS],
    )
    kept = {name: values for name, values in examples.items() if name != WORD_STARTS}
    return {
        **kept,
        "input_ids": masked.input_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.label_ids,
        "masked_lm_weights": masked.weights,
    }


def original_ids(examples: Examples) -> np.ndarray:
    """The token ids [N, S] before masking, from the labels of the masks."""
    ids = examples["input_ids"].copy()
    rows, places = np.nonzero(examples["masked_lm_weights"] > 0)
    ids[rows, examples["masked_lm_positions"][rows, places]] = examples["masked_lm_ids"][
        rows, places
    ]
    return ids


def take_masks_out(examples: Examples, starts_word: np.ndarray, sep_id: int) -> Examples:
    """``word_starts`` in place of stored masks; ``starts_word`` is bool [vocab_size]."""
    ids = original_ids(examples)
    kept = {name: values for name, values in examples.items() if "masked_lm" not in name}
    starts = word_starts(ids, examples["input_mask"], starts_word, sep_id)
    return {**kept, "input_ids": ids, WORD_STARTS: starts}


def word_starts(
    ids: np.ndarray, mask: np.ndarray, starts_word: np.ndarray, sep_id: int
) -> np.ndarray:
    """int64 [N, S], 1 where a word begins.

    The first token of a segment counts as such, as in ``data_prep.instances.instances.assemble``.
    """
    starts = starts_word[ids]
    starts[:, :2] = True
    starts[:, 1:] |= ids[:, :-1] == sep_id
    return (starts & (mask != 0)).astype(np.int64)
