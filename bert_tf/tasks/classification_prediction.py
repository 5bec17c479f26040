"""The evaluation of the classification task, and the files of what it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.files import atomic_open
from bert_tf.glue.formats import GlueFile, GlueTask
from bert_tf.glue.metrics import METRICS
from bert_tf.tasks.finetuning import PredictionEvaluation
from bert_tf.training.evaluation import Figure

PROBABILITIES_NAME = "test_results.tsv"
PREDICTIONS_NAME = "predictions.tsv"


class ClassificationEvaluation(PredictionEvaluation):
    """Scores the predictions of a file with labels, under google-research/bert's names.

    ``eval_loss`` is the mean of the cross entropies, or of the squared errors of ratings.
    """

    def __init__(self, file: GlueFile, *args, **kwargs) -> None:
        """Predicts ``file``; the other arguments are those of :class:`PredictionEvaluation`."""
        super().__init__(*args, **kwargs)
        self._file = file
        self.figure = Figure(figure_name(file.task), higher_is_better=True)

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """The task's metrics and the loss."""
        del output_dir
        labels = np.array([row.label for row in self._file.rows])
        return scores(self._file.task, labels, predictions["logits"])


class ClassificationPrediction(PredictionEvaluation):
    """Writes what is predicted of a file: probabilities, and the label or the rating."""

    def __init__(self, file: GlueFile, *args, **kwargs) -> None:
        """Predicts ``file``; the other arguments are those of :class:`PredictionEvaluation`."""
        super().__init__(*args, **kwargs)
        self._task = file.task

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """No scores; two files in ``output_dir``."""
        logits = predictions["logits"]
        write_predictions(self._task, logits, output_dir)
        return {}


def figure_name(task: GlueTask) -> str:
    """The result by which checkpoints are compared."""
    return f"eval_{task.metrics[0]}"


def scores(task: GlueTask, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """``eval_`` and the name of each of the task's metrics, and ``eval_loss``.

    Args:
      task: of the labels.
      labels: [N], class numbers or ratings.
      logits: [N, num_outputs].
    """
    found = answers(task, logits)
    metrics = {f"eval_{name}": METRICS[name](labels, found) for name in task.metrics}
    if task.is_rating:
        losses = np.square(found - labels)
    else:
        losses = -log_probabilities(logits)[np.arange(len(labels)), labels.astype(int)]
    return {**metrics, "eval_loss": float(losses.mean())}


def answers(task: GlueTask, logits: np.ndarray) -> np.ndarray:
    """[N]: class numbers, or ratings."""
    return logits[:, 0].astype(np.float64) if task.is_rating else logits.argmax(axis=1)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """[N, classes] -> the same, float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def write_predictions(task: GlueTask, logits: np.ndarray, output_dir: Path) -> None:
    """Writes ``test_results.tsv`` and ``predictions.tsv``.

    The first is google-research/bert's: a line for each example with the probability of each class,
    or the rating, and no other columns. The second has GLUE's columns, ``index`` and
    ``prediction``, and names them.
    """
    found = answers(task, logits)
    if task.is_rating:
        numbers = [[str(rating)] for rating in found.tolist()]
        shown = [[f"{rating:.3f}"] for rating in found]
    else:
        numbers = [list(map(str, row)) for row in np.exp(log_probabilities(logits)).tolist()]
        shown = [[task.classes[n]] for n in found]
    _write(output_dir / PROBABILITIES_NAME, numbers)
    rows = ([str(n), *row] for n, row in enumerate(shown))
    _write(output_dir / PREDICTIONS_NAME, [["index", "prediction"], *rows])


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with atomic_open(path) as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
