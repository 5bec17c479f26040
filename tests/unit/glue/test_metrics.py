"""Metrics against formulas written out."""

import numpy as np
import pytest

from bert_tf.glue.metrics import matthews, spearman


def test_matthews_of_a_confusion_matrix():
    tp, tn, fp, fn = 7, 5, 2, 3
    labels = np.repeat([1, 0, 0, 1], [tp, tn, fp, fn])
    found = np.repeat([1, 0, 1, 0], [tp, tn, fp, fn])
    root = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert matthews(labels, found) == pytest.approx(100 * (tp * tn - fp * fn) / root)
    assert matthews(labels, np.ones(len(labels))) == 0.0


def test_spearman_with_equal_values():
    labels, found = np.array([1.0, 2.0, 2.0, 4.0]), np.array([10.0, 30.0, 20.0, 20.0])
    # Ranks 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5.
    expected = np.corrcoef([1, 2.5, 2.5, 4], [1, 4, 2.5, 2.5])[0, 1]
    assert spearman(labels, found) == pytest.approx(100 * expected)
    assert spearman(labels, np.exp(labels)) == pytest.approx(100)
