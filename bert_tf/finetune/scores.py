"""Precision, recall and F1, of a class or of several; probabilities of scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Counts(NamedTuple):
    """How often a class, or each of several, was found: integers, or integers [classes].

    Attributes:
      labelled: how often it is in the labels.
      predicted: how often it is in the predictions.
      correct: how often it is in both.
    """

    labelled: Any = 0
    predicted: Any = 0
    correct: Any = 0

    @property
    def precision(self) -> np.ndarray:
        """The fraction of predictions that are right; 0 without any."""
        return _fraction(self.correct, self.predicted)

    @property
    def recall(self) -> np.ndarray:
        """The fraction of labels that were found; 0 without any."""
        return _fraction(self.correct, self.labelled)

    @property
    def f1(self) -> np.ndarray:
        """Harmonic mean of precision and recall; 0 if the class does not occur."""
        return _fraction(2 * self.correct, self.labelled + self.predicted)

    @property
    def scores(self) -> dict[str, float]:
        """``precision``, ``recall`` and ``f1`` of a single class, from 0 to 1."""
        return {name: float(getattr(self, name)) for name in ("precision", "recall", "f1")}


def _fraction(part: Any, whole: Any) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0)


def softmax(scores: np.ndarray) -> np.ndarray:
    """The probabilities [C] of choices with these scores [C], float64."""
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return powers / powers.sum()
