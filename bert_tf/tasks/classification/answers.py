"""What is predicted of texts, from the outputs of the network; its scores and its files."""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, Classes
from bert_tf.tasks.classification.features import targets_of
from bert_tf.tasks.classification.glue import GlueTask
from bert_tf.tasks.classification.metrics import F1_OF_CLASSES, METRICS
from bert_tf.tasks.classification.texts import Part, TextFile, TextTask
from bert_tf.util.files import atomic_open

PROBABILITIES_NAME = "test_results.tsv"
PREDICTIONS_NAME = "predictions.tsv"
OWN_PREDICTIONS_NAME = "predictions.csv"


@dataclasses.dataclass(frozen=True)
class Answers:
    """What is predicted of texts.

    Attributes:
      classes: what the outputs mean; where a text may have several, with their thresholds.
      logits: [N, num_outputs] float32.
    """

    classes: Classes
    logits: np.ndarray

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """The probabilities of the classes, [N, classes] float64."""
        if self.classes.kind == MULTI_LABEL:
            return np.exp(-np.logaddexp(0, -self.logits.astype(np.float64)))
        return np.exp(log_probabilities(self.logits))

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Class numbers or ratings [N]; where texts may have several classes, bool [N, classes]."""
        if self.classes.kind == MULTI_LABEL:
            return self.probabilities >= self.classes.thresholds
        if self.classes.kind == REGRESSION:
            return self.logits[:, 0].astype(np.float64)
        return self.logits.argmax(axis=1)

    def losses(self, labels: np.ndarray) -> np.ndarray:
        """The unweighted losses [N] against ``labels`` as in :func:`labels_of`, float64."""
        if self.classes.kind == REGRESSION:
            return np.square(self.predicted - labels)
        if self.classes.kind == MULTI_LABEL:
            logits = self.logits.astype(np.float64)
            return (np.logaddexp(0, logits) - labels * logits).mean(axis=1)
        return -log_probabilities(self.logits)[np.arange(len(labels)), labels.astype(int)]

    def names(self, number: int) -> tuple[str, ...]:
        """The classes that are predicted of a text: one, unless it may have several."""
        predicted = self.predicted[number]
        numbers = np.flatnonzero(predicted) if self.classes.kind == MULTI_LABEL else [predicted]
        return tuple(self.classes.labels[n] for n in numbers)

    def shown(self, number: int, separator: str = ",") -> str:
        """A prediction as text."""
        if self.classes.kind == REGRESSION:
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
    labels = [row.label for row in file.rows]
    if not file.task.multi_label:
        return np.array(labels)
    return targets_of(labels, file.task.num_targets) > 0


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Logits [N, classes] -> log probabilities [N, classes], float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def scores(task: TextTask, answers: Answers, labels: np.ndarray) -> dict[str, float]:
    """The task's metrics, with the prefix ``eval_``, and ``eval_loss``.

    ``labels`` are those of :func:`labels_of`. F1 of classes leaves out the task's ``negative``.
    """
    results = {}
    for name in task.metrics:
        compared = [labels, answers.predicted]
        if task.negative and name in F1_OF_CLASSES:
            compared = [_positives(task, numbers) for numbers in compared]
        results[f"eval_{name}"] = METRICS[name](*compared)
    return {**results, "eval_loss": float(answers.losses(labels).mean())}


def _positives(task: TextTask, numbers: np.ndarray) -> np.ndarray:
    """Class numbers [N] as booleans [N, classes - 1], without the negative class."""
    kept = [number for number, name in enumerate(task.classes.labels) if name != task.negative]
    return numbers[:, np.newaxis] == np.array(kept)


def predictions_name(task: GlueTask, part: Part) -> str:
    """The file with the predictions of a part: GLUE's name for those of its test set."""
    return task.submission(part.path.name) or part.named(PREDICTIONS_NAME)


def write_predictions(task: GlueTask, answers: Answers, path: Path) -> None:
    """Writes predictions as GLUE takes them: ``index``, from 0, and ``prediction``.

    Ratings are moved into the range of the labels.
    """
    if task.is_regression:
        answers = Answers(task.classes, np.clip(answers.logits, task.lowest, task.highest))
    rows = ([str(n), answers.shown(n)] for n in range(len(answers.logits)))
    _write(path, [["index", "prediction"], *rows])


def write_probabilities(answers: Answers, path: Path) -> None:
    """Writes google-research/bert's ``test_results.tsv``.

    It has one line per example with the probability of each class, or the score, and no header.
    """
    if answers.classes.kind == REGRESSION:
        numbers = [[str(score)] for score in answers.predicted.tolist()]
    else:
        numbers = [list(map(str, row)) for row in answers.probabilities.tolist()]
    _write(path, numbers)


def write_own_predictions(file: TextFile, answers: Answers, path: Path) -> None:
    """Writes the texts of a file with what is predicted of them, as CSV with a header.

    A single class has its probability next to it; several are separated as in the training file.
    """
    task, separator = file.task, file.task.parameters["label_separator"]
    has_probability = not task.is_regression and not task.multi_label
    probabilities = answers.probabilities.max(axis=1) if has_probability else None
    with atomic_open(path) as output:
        writer = csv.writer(output, lineterminator="\n")
        names = ["prediction", *["probability"][:has_probability]]
        writer.writerow([*task.sentences, *names])
        for number, row in enumerate(file.rows):
            shown = [answers.shown(number, separator)]
            if probabilities is not None:
                shown.append(f"{probabilities[number]:.4f}")
            writer.writerow([*row.sentences, *shown])


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with atomic_open(path) as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
