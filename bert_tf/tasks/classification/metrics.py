"""The metrics of GLUE (Wang et al. 2019), from 0 (correlations: from -1) to 1.

All take labels and predictions, [N] each: class numbers, or scores for regression.
"""

from __future__ import annotations

from typing import Callable

import numpy as np


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The fraction of correct predictions."""
    return float(np.mean(labels == predicted))


def f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    """The harmonic mean of precision and recall of class 1; 0 if it does not occur."""
    true_positives = np.sum((labels == 1) & (predicted == 1))
    total = np.sum(labels == 1) + np.sum(predicted == 1)
    return float(2 * true_positives / total) if total else 0.0


def matthews_correlation(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews correlation of zeros and ones; 0 if one argument is constant.

    For two classes this equals Pearson's correlation (Matthews 1975).
    """
    return pearson(labels, predicted)


def pearson(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's correlation; 0 if one argument is constant."""
    a, b = (np.asarray(values, np.float64) for values in (labels, predicted))
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def spearman(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's rank correlation; ties get the mean of their ranks."""
    return pearson(_ranks(labels), _ranks(predicted))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    function.__name__: function
    for function in (accuracy, f1, matthews_correlation, pearson, spearman)
}


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[group]
