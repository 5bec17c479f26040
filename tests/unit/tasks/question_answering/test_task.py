"""The best positions in a context are compared with numpy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.tasks.question_answering.task import SpanLogits, span_candidates
from tests.unit.tasks.question_answering.test_span_head import (
    LENGTHS,
    B,
    S,
    as_constants,
    features_of,
    session_of,
)


def candidates_of(start, end, features, k):
    return session_of(
        lambda: span_candidates(
            SpanLogits(tf.constant(start), tf.constant(end)), as_constants(features), k=k
        )
    )


@pytest.mark.parametrize("k", [1, 4, 20])
def test_candidates_are_the_best_positions_of_the_context(k):
    features = features_of(LENGTHS)
    rng = np.random.default_rng(4)
    start, end = rng.integers(-3, 3, (2, B, S)).astype(np.float32)  # with many equal scores
    found = candidates_of(start, end, features, k)
    for row, (question, context) in enumerate(LENGTHS):
        positions = list(range(question + 2, question + 2 + context))
        for scores, indices, logits in (
            (start, found.start_indices, found.start_logits),
            (end, found.end_indices, found.end_logits),
        ):
            best = sorted(positions, key=lambda p: (-scores[row, p], p))[:k]
            assert indices[row, : len(best)].tolist() == best
            np.testing.assert_array_equal(logits[row, : len(best)], scores[row, best])
            assert np.all(np.isneginf(logits[row, len(best) :]))
            assert logits.shape == (B, k)
    np.testing.assert_array_equal(found.null_logits, start[:, 0] + end[:, 0])
