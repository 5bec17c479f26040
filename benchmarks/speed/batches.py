"""Made-up features: full-length sequences of random tokens, the same for every subject."""

from __future__ import annotations

import numpy as np


def pretraining_batch(
    sequences: int, *, vocab_size: int, seq_length: int, predictions: int, seed: int
) -> dict[str, np.ndarray]:
    """Pre-training features without padding: [sequences, ...] arrays of int32 and float32.

    The ``predictions`` masked positions of a sequence are distinct and in ascending order.
    """
    draw = np.random.default_rng(seed)
    chosen = np.argsort(draw.random((sequences, seq_length)), axis=1)[:, :predictions]
    positions = np.sort(chosen, axis=1).astype(np.int32)
    return {
        **_inputs(draw, sequences, vocab_size, seq_length),
        "masked_lm_positions": positions,
        "masked_lm_ids": draw.integers(vocab_size, size=positions.shape, dtype=np.int32),
        "masked_lm_weights": np.ones(positions.shape, np.float32),
        "next_sentence_labels": draw.integers(2, size=(sequences, 1), dtype=np.int32),
    }


def masked_words(seq_length: int) -> int:
    """Number of masked tokens per sequence (Devlin et al. 2018: 15 %), at least 1."""
    return max(1, round(0.15 * seq_length))


def span_batch(
    sequences: int, *, vocab_size: int, seq_length: int, seed: int
) -> dict[str, np.ndarray]:
    """Features of questions with answers, without padding: int32, [sequences, ...]."""
    draw = np.random.default_rng(seed)
    inputs = _inputs(draw, sequences, vocab_size, seq_length)
    ends = np.sort(draw.integers(seq_length, size=(sequences, 2), dtype=np.int32), axis=1)
    return {**inputs, "start_positions": ends[:, 0], "end_positions": ends[:, 1]}


def _inputs(
    draw: np.random.Generator, sequences: int, vocab_size: int, seq_length: int
) -> dict[str, np.ndarray]:
    segments = np.zeros((sequences, seq_length), np.int32)
    segments[:, seq_length // 2 :] = 1
    return {
        "input_ids": draw.integers(vocab_size, size=segments.shape, dtype=np.int32),
        "input_mask": np.ones_like(segments),
        "segment_ids": segments,
    }
