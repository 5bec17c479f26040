"""Metrics of classification, from 0 (correlations: from -1) to 1; errors have the labels' unit.

Most take labels and predictions, [N] each: class numbers, or scores of a regression. Metrics for
several classes per text take booleans [N, classes].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.finetune.scores import Counts


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The fraction of correct predictions."""
    return float(np.mean(labels == predicted))


def f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Harmonic mean of precision and recall of class 1; 0 if it does not occur."""
    return float(counts_of(labels == 1, predicted == 1).f1)


def matthews_correlation(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews correlation of class numbers; 0 if one argument is constant.

    For zeros and ones this equals Pearson's correlation (Matthews 1975); for more classes, that of
    their indicators, taken together (R_K, Gorodkin 2004).
    """
    if max(labels.max(), predicted.max()) > 1:
        labels, predicted = _by_class(labels, predicted), _by_class(predicted, labels)
    return pearson(labels, predicted)


def pearson(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's correlation of [N] or, over all columns, [N, M]; 0 if one argument is constant."""
    a, b = (np.asarray(values, np.float64) for values in (labels, predicted))
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def spearman(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's rank correlation; ties get the mean of their ranks."""
    return pearson(_ranks(labels), _ranks(predicted))


def mean_absolute_error(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The mean distance of predictions from labels, in their unit."""
    return float(np.abs(np.subtract(predicted, labels, dtype=np.float64)).mean())


def root_mean_squared_error(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The root of the mean squared distance of predictions from labels, in their unit."""
    return float(np.sqrt(np.square(np.subtract(predicted, labels, dtype=np.float64)).mean()))


def macro_f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The mean of the classes' F1, of classes that are a label or a prediction of some text."""
    counts = counts_of(_by_class(labels, predicted), _by_class(predicted, labels))
    occurs = counts.labelled + counts.predicted > 0
    return float(counts.f1[occurs].mean()) if occurs.any() else 0.0


def micro_f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of all pairs of a text and a class together."""
    return float(counts_of(labels.ravel(), predicted.ravel()).f1)


def exact_match(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The fraction of texts whose classes are exactly the predicted ones."""
    return float(np.mean((labels == predicted).all(axis=1)))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    function.__name__: function
    for function in (
        *(accuracy, f1, matthews_correlation, macro_f1, micro_f1, exact_match),
        *(spearman, pearson, mean_absolute_error, root_mean_squared_error),
    )
}


F1_OF_CLASSES = ("macro_f1", "micro_f1")


def counts_of(labels: np.ndarray, predicted: np.ndarray) -> Counts:
    """The counts of a class (booleans [N]), or of each class (booleans [N, classes])."""
    both = (labels & predicted).sum(axis=0)
    return Counts(labels.sum(axis=0), predicted.sum(axis=0), both)


def best_threshold(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """The probability from which a text should have a class, by micro F1, of [N, classes] each.

    Returns: the middle between the two probabilities that it separates; 0.5 without any positive.
    """
    order = np.argsort(-probabilities, axis=None, kind="stable")
    ranked, truth = probabilities.ravel()[order].astype(np.float64), labels.ravel()[order]
    if not truth.any():
        return 0.5
    correct = np.cumsum(truth)
    scores = 2 * correct / (np.arange(1, len(truth) + 1) + truth.sum())
    borders = np.append(ranked[:-1] > ranked[1:], True)
    best = int(np.argmax(np.where(borders, scores, -1)))
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + below) / 2)


def expected_calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """The mean distance of confidence and accuracy over bins of confidence (Guo et al. 2017)."""
    total = sum(row.predictions for row in bins)
    return sum(row.predictions / total * abs(row.confidence - row.accuracy) for row in bins)


class CalibrationBin(NamedTuple):
    """The predictions of a range of confidence: their number, mean confidence and accuracy."""

    low: float
    high: float
    predictions: int
    confidence: float
    accuracy: float


def calibration(
    confidence: np.ndarray, is_right: np.ndarray, *, bins: int = 10
) -> list[CalibrationBin]:
    """The ``bins`` of equal width of ``confidence`` [N] that have predictions.

    ``is_right`` is bool [N].
    """
    numbers = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = []
    for number in np.unique(numbers):
        inside = numbers == number
        rows.append(
            CalibrationBin(
                number / bins,
                (number + 1) / bins,
                int(inside.sum()),
                float(confidence[inside].mean()),
                float(is_right[inside].mean()),
            )
        )
    return rows


def _by_class(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Class numbers [N] as booleans [N, classes]; booleans as they are."""
    if values.ndim == 2:
        return values
    classes = np.arange(1 + int(max(values.max(initial=0), others.max(initial=0))))
    return values[:, None] == classes


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[group]
