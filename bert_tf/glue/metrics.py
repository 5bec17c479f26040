"""The metrics of GLUE (Wang et al. 2019), in percent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the equal ones in percent."""
    return 100.0 * float(np.mean(labels == predicted))


def matthews(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews's correlation of two kinds of 0 and 1, times 100; 0 where one of them is constant.

    For two classes it is Pearson's (Matthews 1975).
    """
    return _pearson(labels, predicted)


def spearman(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's correlation of ranks, times 100; equal values share the mean of their ranks."""
    return _pearson(_ranks(labels), _ranks(predicted))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "spearman": spearman,
}


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return 100.0 * float((a * b).sum()) / scale if scale else 0.0


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[group]
