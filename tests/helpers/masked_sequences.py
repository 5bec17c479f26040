"""Sequences to draw masks for, and what they consist of."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}


@st.composite
def batches(draw):
    """Sequences of two segments, padded, with random words: (ids, lengths, word_starts)."""
    seq_length = draw(st.integers(5, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 6))
    lengths = rng.integers(5, seq_length + 1, count)
    ids = np.zeros((count, seq_length), np.int64)
    starts = np.zeros((count, seq_length), np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(5, 50, length)
        starts[row, :length] = rng.random(length) < 0.5
        first_sep = rng.integers(2, length - 2)
        ids[row, [0, first_sep, length - 1]] = [CLS, SEP, SEP]
        starts[row, [0, 1, first_sep, first_sep + 1, length - 1]] = 1
    return ids, lengths, starts


def words_of(ids, starts, length):
    """Lists of positions, one a word; special tokens left out."""
    words = []
    for position in range(length):
        if ids[position] in (CLS, SEP):
            continue
        if starts[position]:
            words.append([position])
        else:
            words[-1].append(position)
    return words


def segments_of(ids, starts, length):
    """The words, as lists of positions, of each part between special tokens."""
    segments: list = [[]]
    for word in words_of(ids, starts, length):
        if segments[-1] and word[0] != segments[-1][-1][-1] + 1:
            segments.append([])
        segments[-1].append(word)
    return segments
