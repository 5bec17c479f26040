"""Metrics are compared with scikit-learn's and SciPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    precision_recall_fscore_support,
)

from bert_tf.tasks.classification.metrics import (
    accuracy,
    best_threshold,
    calibration,
    counts_of,
    exact_match,
    expected_calibration_error,
    f1,
    macro_f1,
    matthews_correlation,
    micro_f1,
    pearson,
    spearman,
)


def test_constant_arguments():
    ones, zeros = np.ones(4), np.zeros(4)
    mixed = np.array([0, 1, 1, 0])
    assert matthews_correlation(mixed, ones) == pearson(ones, mixed) == spearman(mixed, zeros) == 0
    assert f1(zeros, zeros) == f1(mixed, zeros) == 0
    assert accuracy(ones, ones) == f1(ones, ones) == 1


TRUE = np.array([0, 0, 1, 2, 2, 2, 4])
GUESSED = np.array([0, 1, 1, 2, 0, 2, 3])
RNG = np.random.default_rng(0)
SEVERAL, ALSO = (RNG.random((50, 4)) < 0.3 for _ in range(2))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_metrics_of_classes_are_scikit_learns(classes):
    labels, guessed = RNG.integers(0, classes, size=(2, 300))
    guessed = np.where(RNG.random(300) < 0.4, labels, guessed)
    assert matthews_correlation(labels, guessed) == pytest.approx(
        matthews_corrcoef(labels, guessed)
    )
    assert accuracy(labels, guessed) == accuracy_score(labels, guessed)
    of_one = f1_score(labels, guessed, labels=[1], average="micro")
    assert f1(labels, guessed) == pytest.approx(of_one)


def test_correlations_are_scipys():
    ratings = RNG.integers(0, 26, 200) / 5  # with ties, as those of STS-B
    guessed = (ratings + RNG.normal(size=200)).round(1)
    assert pearson(ratings, guessed) == pytest.approx(pearsonr(ratings, guessed).statistic)
    assert spearman(ratings, guessed) == pytest.approx(spearmanr(ratings, guessed).statistic)


def test_a_constant_prediction_of_three_classes():
    labels = np.array([0, 1, 2, 2])
    assert matthews_correlation(labels, np.full(4, 2)) == 0 == matthews_corrcoef(labels, [2] * 4)


def test_macro_f1_is_scikit_learns():
    expected = f1_score(TRUE, GUESSED, average="macro", zero_division=0)
    assert macro_f1(TRUE, GUESSED) == pytest.approx(expected)
    expected = f1_score(SEVERAL, ALSO, average="macro")
    assert macro_f1(SEVERAL, ALSO) == pytest.approx(expected)


def test_micro_f1_and_exact_match_are_scikit_learns():
    assert micro_f1(SEVERAL, ALSO) == pytest.approx(f1_score(SEVERAL, ALSO, average="micro"))
    assert exact_match(SEVERAL, ALSO) == pytest.approx(accuracy_score(SEVERAL, ALSO))


def test_counts_of_classes_are_scikit_learns():
    precision, recall, f1_scores, _ = precision_recall_fscore_support(SEVERAL, ALSO)
    counts = counts_of(SEVERAL, ALSO)
    np.testing.assert_allclose(counts.precision, precision)
    np.testing.assert_allclose(counts.recall, recall)
    np.testing.assert_allclose(counts.f1, f1_scores)


@given(st.data())
def test_no_threshold_is_better(data):
    shape = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 3)))
    levels = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
    probabilities = data.draw(arrays(np.float64, shape, elements=levels))
    labels = data.draw(arrays(bool, shape))
    best = micro_f1(labels, probabilities >= best_threshold(labels, probabilities))
    for threshold in (0.05, 0.2, 0.3, 0.7, 0.95):
        assert best >= micro_f1(labels, probabilities >= threshold) - 1e-12


def test_calibration():
    confidence = np.array([0.55, 0.58, 0.95, 1.0])
    is_right = np.array([True, False, True, True])
    low, high = calibration(confidence, is_right)
    assert (low.low, low.high, low.predictions, low.accuracy) == (0.5, 0.6, 2, 0.5)
    assert high.confidence == pytest.approx(0.975)
    # 2/4 x |0.565 - 0.5| + 2/4 x |0.975 - 1|
    assert expected_calibration_error(calibration(confidence, is_right)) == pytest.approx(0.045)
