"""Evaluation of the classification task, and the files of its predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.model_directory.text_classes import (
    DEFAULT_THRESHOLD,
    read_text_classes,
    write_text_classes,
)
from bert_tf.tasks.classification.metrics import METRICS, best_threshold
from bert_tf.tasks.classification.text_task import TextFile, TextTask
from bert_tf.tasks.finetuning.run import PredictionEvaluation
from bert_tf.train.evaluation import Figure
from bert_tf.util.files import atomic_open

PROBABILITIES_NAME = "test_results.tsv"
PREDICTIONS_NAME = "predictions.tsv"


@dataclasses.dataclass(frozen=True)
class Answers:
    """What is predicted of texts.

    Attributes:
      task: what the outputs mean.
      logits: [N, num_outputs] float32.
      threshold: the probability from which a text has a class, if it may have several.
    """

    task: TextTask
    logits: np.ndarray
    threshold: float = DEFAULT_THRESHOLD

    @property
    def probabilities(self) -> np.ndarray:
        """Of the classes, [N, classes] float64."""
        if self.task.multi_label:
            return _sigmoid(self.logits.astype(np.float64))
        return np.exp(log_probabilities(self.logits))

    @property
    def predicted(self) -> np.ndarray:
        """Class numbers or ratings [N]; where texts may have several classes, bool [N, classes]."""
        if self.task.multi_label:
            return self.probabilities >= self.threshold
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

    def shown(self, number: int, separator: str = ",") -> str:
        """A prediction as text."""
        if self.task.is_regression:
            return f"{self.logits[number, 0].astype(np.float64):.3f}"
        if self.task.multi_label:
            chosen = np.flatnonzero(_sigmoid(self.logits[number]) >= self.threshold)
            return separator.join(self.task.classes[n] for n in chosen)
        return self.task.classes[self.logits[number].argmax()]


class ClassificationEvaluation(PredictionEvaluation):
    """Scores the predictions for a file with labels, under google-research/bert's names.

    ``eval_loss`` is the mean of the cross entropies, or of the squared errors in a regression.
    Where texts may have several classes, the threshold that is best for the file is stored with the
    model.
    """

    def __init__(self, file: TextFile, *args, **kwargs) -> None:
        """Predicts ``file``; the other arguments are those of :class:`PredictionEvaluation`."""
        super().__init__(*args, **kwargs)
        self._file = file
        self.figure = Figure(figure_name(file.task), higher_is_better=True)

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """The task's metrics and the loss."""
        task, labels, logits = self._file.task, labels_of(self._file), predictions["logits"]
        if not task.multi_label:
            return scores(Answers(task, logits), labels)
        threshold = best_threshold(labels, Answers(task, logits).probabilities)
        stored = dataclasses.replace(task.stored_classes, threshold=threshold)
        write_text_classes(output_dir, stored)
        return {
            **scores(Answers(task, logits, threshold), labels),
            "eval_threshold": threshold,
        }


class ClassificationPrediction(PredictionEvaluation):
    """Writes the predictions for a file: probabilities, and the class or the score."""

    def __init__(self, file: TextFile, *args, threshold: float, **kwargs) -> None:
        """Predicts ``file``.

        Args:
          file: the texts.
          threshold: as in :class:`Answers`, unless an evaluation of the run stores another one.
          *args, **kwargs: as for :class:`PredictionEvaluation`.
        """
        super().__init__(*args, **kwargs)
        self._task = file.task
        self._threshold = threshold

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Writes two files to ``output_dir``; returns no scores."""
        stored = read_text_classes(output_dir)
        threshold = self._threshold if stored is None else stored.threshold
        write_predictions(Answers(self._task, predictions["logits"], threshold), output_dir)
        return {}


def figure_name(task: TextTask) -> str:
    """The name of the result by which checkpoints are compared."""
    return f"eval_{task.metrics[0]}"


def labels_of(file: TextFile) -> np.ndarray:
    """The labels of a file: [N], or bool [N, classes] where texts may have several classes."""
    if not file.task.multi_label:
        return np.array([row.label for row in file.rows])
    found = np.zeros((len(file.rows), len(file.task.classes)), bool)
    for row, example in zip(found, file.rows):
        if isinstance(example.label, tuple):
            row[list(example.label)] = True
    return found


def scores(answers: Answers, labels: np.ndarray) -> dict[str, float]:
    """The task's metrics, with the prefix ``eval_``, and ``eval_loss``; labels as above."""
    predicted = answers.predicted
    metrics = {f"eval_{name}": METRICS[name](labels, predicted) for name in answers.task.metrics}
    return {**metrics, "eval_loss": float(answers.losses(labels).mean())}


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Logits [N, classes] -> log probabilities [N, classes], float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def write_predictions(answers: Answers, output_dir: Path) -> None:
    """Writes ``test_results.tsv`` and ``predictions.tsv``.

    The first is in google-research/bert's format: one line per example with the probability of each
    class, or the score, without a header. The second has GLUE's columns, ``index`` and
    ``prediction``, with a header.
    """
    if answers.task.is_regression:
        numbers = [[str(score)] for score in answers.predicted.tolist()]
    else:
        numbers = [list(map(str, row)) for row in answers.probabilities.tolist()]
    _write(output_dir / PROBABILITIES_NAME, numbers)
    rows = ([str(n), answers.shown(n)] for n in range(len(answers.logits)))
    _write(output_dir / PREDICTIONS_NAME, [["index", "prediction"], *rows])


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with atomic_open(path) as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
