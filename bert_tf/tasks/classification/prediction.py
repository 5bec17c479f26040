"""Evaluation of the classification task, and the files of its predictions."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.records.sequences import SequenceRecords
from bert_tf.tasks.classification.answers import Answers, labels_of, logits_of_texts
from bert_tf.tasks.classification.glue import GlueTask
from bert_tf.tasks.classification.metrics import F1_OF_CLASSES, METRICS
from bert_tf.tasks.classification.report import write_report
from bert_tf.tasks.classification.text_task import Part, TextFile, TextTask
from bert_tf.tasks.classification.thresholds import ThresholdSettings
from bert_tf.tasks.finetuning.run import PredictionEvaluation
from bert_tf.train.evaluation import Figure
from bert_tf.util.files import atomic_open

PROBABILITIES_NAME = "test_results.tsv"
PREDICTIONS_NAME = "predictions.tsv"
OWN_PREDICTIONS_NAME = "predictions.csv"


class TextPrediction(PredictionEvaluation):
    """Predicts texts, each from one sequence or from several windows."""

    def __init__(self, file: TextFile, records: SequenceRecords, *args: Any, **kwargs: Any) -> None:
        """Predicts ``file``; the other arguments are those of :class:`PredictionEvaluation`."""
        super().__init__(records, *args, **kwargs)
        self._file = file
        self._windows = records.records_per_item

    def answers(self, predictions: Mapping[str, np.ndarray]) -> Answers:
        """What is predicted of the texts, from predictions for the records."""
        return Answers(self._file.task, logits_of_texts(predictions["logits"], self._windows))


class ClassificationEvaluation(TextPrediction):
    """Scores the predictions for a file with labels, under google-research/bert's names.

    ``eval_loss`` is the mean of the cross entropies, or of the squared errors in a regression.
    Where texts may have several classes, a run that trains stores the threshold with the model that
    is best for its development file.
    """

    def __init__(
        self, file: TextFile, *args: Any, thresholds: ThresholdSettings, trains: bool, **kwargs: Any
    ) -> None:
        """Predicts ``file``.

        Args:
          file: the texts.
          thresholds: what the user says of them.
          trains: whether the run trains the model.
          *args, **kwargs: as for :class:`PredictionEvaluation`.
        """
        super().__init__(file, *args, **kwargs)
        self._thresholds, self._trains = thresholds, trains
        self.figure = Figure(figure_name(file.task), higher_is_better=True)

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """The task's metrics and the loss of each part; writes ``report.html``."""
        task, labels = self._file.task, labels_of(self._file)
        answers = self.answers(predictions)
        found = {}
        if task.multi_label:
            thresholds = self._thresholds.chosen(
                output_dir,
                labels,
                answers.probabilities,
                digest=self._records.digest,
                trains=self._trains,
            )
            answers = dataclasses.replace(answers, thresholds=thresholds)
            if len(set(thresholds)) == 1:
                found["eval_threshold"] = thresholds[0]
        results = {}
        for part in self._file.parts:
            of_part = scores(answers.of(part.rows), labels[part.rows])
            results.update({part.named(name): value for name, value in of_part.items()})
        results.update(found)
        write_report(output_dir, self._file, answers, results)
        return results


class ClassificationPrediction(TextPrediction):
    """Writes the predictions for a file: probabilities, and the class or the score."""

    def __init__(
        self, file: TextFile, *args: Any, thresholds: ThresholdSettings, **kwargs: Any
    ) -> None:
        """Predicts ``file``; ``thresholds`` is what the user says of them, the rest as above."""
        super().__init__(file, *args, **kwargs)
        self._thresholds = thresholds

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Writes two files for each part to ``output_dir``; returns no scores."""
        task, answers = self._file.task, self.answers(predictions)
        if task.multi_label:
            answers = dataclasses.replace(answers, thresholds=self._thresholds.stored(output_dir))
        for part in self._file.parts:
            of_part = answers.of(part.rows)
            write_probabilities(of_part, output_dir / _with_part(PROBABILITIES_NAME, part))
            if isinstance(task, GlueTask):
                write_predictions(of_part, output_dir / predictions_name(task, part))
        if not isinstance(task, GlueTask):
            write_own_predictions(self._file, answers, output_dir / OWN_PREDICTIONS_NAME)
        return {}


def figure_name(task: TextTask) -> str:
    """The name of the result by which checkpoints are compared."""
    return f"eval_{task.metrics[0]}"


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
