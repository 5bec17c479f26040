"""Evaluation of the classification task, and the files of its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.tasks.classification.formats import GlueFile, GlueTask
from bert_tf.tasks.classification.metrics import METRICS
from bert_tf.tasks.finetuning.run import PredictionEvaluation
from bert_tf.train.evaluation import Figure
from bert_tf.util.files import atomic_open

PROBABILITIES_NAME = "test_results.tsv"
PREDICTIONS_NAME = "predictions.tsv"


class ClassificationEvaluation(PredictionEvaluation):
    """Scores the predictions for a file with labels, under google-research/bert's names.

    ``eval_loss`` is the mean cross entropy, or the mean squared error for regression.
    """

    def __init__(self, file: GlueFile, *args: Any, **kwargs: Any) -> None:
        """Evaluates on ``file``; the other arguments are as in :class:`PredictionEvaluation`."""
        super().__init__(*args, **kwargs)
        self._file = file
        self.figure = Figure(figure_name(file.task), higher_is_better=True)

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """The task's metrics and the loss."""
        del output_dir
        labels = np.array([row.label for row in self._file.rows])
        return scores(self._file.task, labels, predictions["logits"])


class ClassificationPrediction(PredictionEvaluation):
    """Writes the predictions for a file: probabilities, and the class or the score."""

    def __init__(self, file: GlueFile, *args: Any, **kwargs: Any) -> None:
        """Predicts ``file``; the other arguments are as in :class:`PredictionEvaluation`."""
        super().__init__(*args, **kwargs)
        self._task = file.task

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Writes two files to ``output_dir``; returns no scores."""
        logits = predictions["logits"]
        write_predictions(self._task, logits, output_dir)
        return {}


def figure_name(task: GlueTask) -> str:
    """The name of the metric by which checkpoints are compared."""
    return f"eval_{task.metrics[0]}"


def scores(task: GlueTask, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """The task's metrics, with the prefix ``eval_``, and ``eval_loss``.

    Args:
      task: the task.
      labels: [N], class numbers or scores.
      logits: [N, num_outputs].
    """
    predicted = answers(task, logits)
    metrics = {f"eval_{name}": METRICS[name](labels, predicted) for name in task.metrics}
    if task.is_regression:
        losses = np.square(predicted - labels)
    else:
        losses = -log_probabilities(logits)[np.arange(len(labels)), labels.astype(int)]
    return {**metrics, "eval_loss": float(losses.mean())}


def answers(task: GlueTask, logits: np.ndarray) -> np.ndarray:
    """The predicted class numbers or scores, [N]."""
    return logits[:, 0].astype(np.float64) if task.is_regression else logits.argmax(axis=1)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Logits [N, classes] -> log probabilities [N, classes], float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def write_predictions(task: GlueTask, logits: np.ndarray, output_dir: Path) -> None:
    """Writes ``test_results.tsv`` and ``predictions.tsv``.

    The first is in google-research/bert's format: one line per example with the probability of each
    class, or the score, and no header. The second has GLUE's columns, ``index`` and ``prediction``,
    with a header.
    """
    predicted = answers(task, logits)
    if task.is_regression:
        numbers = [[str(score)] for score in predicted.tolist()]
        shown = [[f"{score:.3f}"] for score in predicted]
    else:
        numbers = [list(map(str, row)) for row in np.exp(log_probabilities(logits)).tolist()]
        shown = [[task.classes[n]] for n in predicted]
    _write(output_dir / PROBABILITIES_NAME, numbers)
    rows = ([str(n), *row] for n, row in enumerate(shown))
    _write(output_dir / PREDICTIONS_NAME, [["index", "prediction"], *rows])


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with atomic_open(path) as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
