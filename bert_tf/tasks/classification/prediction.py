"""Scores of predictions, and the files with predictions."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bert_tf.tasks.classification.answers import Answers
from bert_tf.tasks.classification.glue import GlueTask
from bert_tf.tasks.classification.metrics import F1_OF_CLASSES, METRICS
from bert_tf.tasks.classification.text_task import Part, TextFile, TextTask
from bert_tf.util.files import atomic_open

PROBABILITIES_NAME = "test_results.tsv"
PREDICTIONS_NAME = "predictions.tsv"
OWN_PREDICTIONS_NAME = "predictions.csv"


def scores(answers: Answers, labels: np.ndarray) -> dict[str, float]:
    """The task's metrics, with the prefix ``eval_``, and ``eval_loss``.

    ``labels`` are those of :func:`labels_of`. F1 of classes leaves out the task's ``negative``.
    """
    task, predicted = answers.task, answers.predicted
    found = {}
    for name in task.metrics:
        compared = [labels, predicted]
        if task.negative and name in F1_OF_CLASSES:
            compared = [_positives(task, numbers) for numbers in compared]
        found[f"eval_{name}"] = METRICS[name](*compared)
    return {**found, "eval_loss": float(answers.losses(labels).mean())}


def _positives(task: TextTask, numbers: np.ndarray) -> np.ndarray:
    """Class numbers [N] as booleans [N, classes - 1], without the negative class."""
    kept = [number for number, name in enumerate(task.classes) if name != task.negative]
    return numbers[:, np.newaxis] == np.array(kept)


def write_part(answers: Answers, part: Part, output_dir: Path) -> None:
    """Writes what is predicted of a part: probabilities, and for a published task its answers."""
    write_probabilities(answers, output_dir / _with_part(PROBABILITIES_NAME, part))
    if isinstance(answers.task, GlueTask):
        write_predictions(answers, output_dir / predictions_name(answers.task, part))


def predictions_name(task: GlueTask, part: Part) -> str:
    """The file with the predictions of a part: GLUE's name for those of its test set."""
    return task.submission(part.path.name) or _with_part(PREDICTIONS_NAME, part)


def _with_part(name: str, part: Part) -> str:
    stem, dot, suffix = name.partition(".")
    return f"{part.named(stem)}{dot}{suffix}"


def write_predictions(answers: Answers, path: Path) -> None:
    """Writes predictions as GLUE takes them: ``index``, from 0, and ``prediction``.

    Ratings are moved into the range of the labels.
    """
    task = answers.task
    if task.is_regression:
        clipped = np.clip(answers.logits, task.lowest, task.highest)
        answers = dataclasses.replace(answers, logits=clipped)
    rows = ([str(n), answers.shown(n)] for n in range(len(answers.logits)))
    _write(path, [["index", "prediction"], *rows])


def write_probabilities(answers: Answers, path: Path) -> None:
    """Writes google-research/bert's ``test_results.tsv``.

    It has one line per example with the probability of each class, or the score, and no header.
    """
    if answers.task.is_regression:
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
