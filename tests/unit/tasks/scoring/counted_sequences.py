"""Sequences of which only the numbers matter."""

import numpy as np

from bert_tf.tasks.scoring.sequences import ScoredText, Sequences, TokenSequence


def sequences_of(texts):
    """``texts`` are (number, tokens of each sequence, words)."""
    return Sequences(
        [
            ScoredText(number, [_sequence(number, tokens) for tokens in sizes], words, 0)
            for number, sizes, words in texts
        ],
        skipped={},
    )


def _sequence(number, tokens):
    nothing = np.zeros(tokens)
    return TokenSequence(number, nothing, nothing, np.ones(tokens, bool))
