"""Metrics are compared with explicit formulas."""

import numpy as np
import pytest

from bert_tf.tasks.classification.metrics import (
    METRICS,
    accuracy,
    f1,
    matthews_correlation,
    pearson,
    spearman,
)

TP, TN, FP, FN = 7, 5, 2, 3
LABELS = np.repeat([1, 0, 0, 1], [TP, TN, FP, FN])
FOUND = np.repeat([1, 0, 1, 0], [TP, TN, FP, FN])


def test_metrics_of_a_confusion_matrix():
    assert accuracy(LABELS, FOUND) == pytest.approx((TP + TN) / 17)
    precision, recall = TP / (TP + FP), TP / (TP + FN)
    assert f1(LABELS, FOUND) == pytest.approx(2 * precision * recall / (precision + recall))
    root = ((TP + FP) * (TP + FN) * (TN + FP) * (TN + FN)) ** 0.5
    assert matthews_correlation(LABELS, FOUND) == pytest.approx((TP * TN - FP * FN) / root)


def test_constant_arguments():
    ones, zeros = np.ones(4), np.zeros(4)
    mixed = np.array([0, 1, 1, 0])
    assert matthews_correlation(mixed, ones) == pearson(ones, mixed) == spearman(mixed, zeros) == 0
    assert f1(zeros, zeros) == f1(mixed, zeros) == 0
    assert accuracy(ones, ones) == f1(ones, ones) == 1


def test_pearson():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 50))
    assert pearson(a, a + b) == pytest.approx(np.corrcoef(a, a + b)[0, 1])
    assert pearson(a, -3 * a + 1) == pytest.approx(-1)


def test_spearman_with_equal_values():
    labels, found = np.array([1.0, 2.0, 2.0, 4.0]), np.array([10.0, 30.0, 20.0, 20.0])
    # Ranks 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5.
    expected = np.corrcoef([1, 2.5, 2.5, 4], [1, 4, 2.5, 2.5])[0, 1]
    assert spearman(labels, found) == pytest.approx(expected)
    assert spearman(labels, np.exp(labels)) == pytest.approx(1)


def test_names():
    assert METRICS.keys() == {"accuracy", "f1", "matthews_correlation", "pearson", "spearman"}
