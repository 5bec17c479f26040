"""What is predicted of texts, from the outputs of the network."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from bert_tf.model_directory.classes import DEFAULT_THRESHOLD
from bert_tf.tasks.classification.text_task import TextFile, TextTask


@dataclasses.dataclass(frozen=True)
class Answers:
    """What is predicted of texts.

    Attributes:
      task: what the outputs mean.
      logits: [N, num_outputs] float32.
      thresholds: the probability of each class from which a text has it, if it may have several.
    """

    task: TextTask
    logits: np.ndarray
    thresholds: tuple[float, ...] = (DEFAULT_THRESHOLD,)

    def of(self, rows: slice) -> Answers:
        """What is predicted of some of the texts."""
        return dataclasses.replace(self, logits=self.logits[rows])

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """The probabilities of the classes, [N, classes] float64."""
        if self.task.multi_label:
            return _sigmoid(self.logits.astype(np.float64))
        return np.exp(log_probabilities(self.logits))

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Class numbers or ratings [N]; where texts may have several classes, bool [N, classes]."""
        if self.task.multi_label:
            return self.probabilities >= self.thresholds
        if self.task.is_regression:
            return self.logits[:, 0].astype(np.float64)
        return self.logits.argmax(axis=1)

    def losses(self, labels: np.ndarray) -> np.ndarray:
        """The unweighted losses [N] against ``labels`` as in :func:`labels_of`, float64."""
        if self.task.is_regression:
            return np.square(self.predicted - labels)
        if self.task.multi_label:
            logits = self.logits.astype(np.float64)
            return (np.logaddexp(0, logits) - labels * logits).mean(axis=1)
        return -log_probabilities(self.logits)[np.arange(len(labels)), labels.astype(int)]

    def names(self, number: int) -> tuple[str, ...]:
        """The classes that are predicted of a text: one, unless it may have several."""
        found = self.predicted[number]
        numbers = np.flatnonzero(found) if self.task.multi_label else [found]
        return tuple(self.task.classes[n] for n in numbers)

    def shown(self, number: int, separator: str = ",") -> str:
        """A prediction as text."""
        if self.task.is_regression:
            return f"{self.predicted[number]:.3f}"
        return separator.join(self.names(number))


def logits_of_texts(logits: np.ndarray, windows: np.ndarray | None) -> np.ndarray:
    """Logits [sequences, outputs] -> [texts, outputs]: the means over each text's windows.

    ``windows`` are the sequences of each text; None if all have one.
    """
    if windows is None:
        return logits
    ends = np.cumsum(windows)
    sums = np.add.reduceat(logits.astype(np.float64), ends - windows, axis=0)
    return (sums / windows[:, np.newaxis]).astype(np.float32)


def labels_of(file: TextFile) -> np.ndarray:
    """The labels of a file: [N], or bool [N, classes] where texts may have several classes."""
    if not file.task.multi_label:
        return np.array([row.label for row in file.rows])
    found = np.zeros((len(file.rows), len(file.task.classes)), bool)
    for row, example in zip(found, file.rows):
        if isinstance(example.label, tuple):
            row[list(example.label)] = True
    return found


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Logits [N, classes] -> log probabilities [N, classes], float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))
