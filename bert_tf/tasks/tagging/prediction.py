"""Evaluation of the tagging task, and the file of predictions."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.records.layouts import WORD_STARTS
from bert_tf.tasks.finetuning.run import PredictionEvaluation
from bert_tf.tasks.tagging.chunks import Counts, are_of_entities, count_entities, total
from bert_tf.tasks.tagging.formats import TaggedFile, with_predictions
from bert_tf.tasks.tagging.report import write_report
from bert_tf.tasks.tagging.task import CROSS_ENTROPIES, LABELS
from bert_tf.train.evaluation import Figure
from bert_tf.util.files import atomic_open, write_json

PREDICTIONS_NAME = "predictions.txt"
ENTITIES_NAME = "eval_entities.json"


class TaggingEvaluation(PredictionEvaluation):
    """Scores the predictions for a file with labels, and writes ``report.html``.

    The results are ``eval_accuracy`` of words and ``eval_loss``, the mean cross entropy of words
    whose label the model has. If the file's labels mark entities, there are also
    ``eval_precision``, ``eval_recall`` and ``eval_f1``, and a file with the scores of each type.
    """

    def __init__(self, labels: Sequence[str], file: TaggedFile, *args: Any, **kwargs: Any) -> None:
        """Predicts ``file``; ``labels`` are by class number, the rest as in the superclass."""
        super().__init__(*args, **kwargs)
        self._file = file
        self._labels = labels
        self._has_entities = are_of_entities(file.labels)
        self.figure = Figure(figure_name(file), higher_is_better=True)

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """The scores and the loss; writes the report and the scores of every entity type."""
        at_words = predictions[WORD_STARTS] > 0
        predicted = predicted_labels(self._file, self._labels, predictions)
        if self._has_entities:
            labelled = [sentence.labels for sentence in self._file.sentences]
            counts = count_entities(labelled, predicted)
            write_json(output_dir / ENTITIES_NAME, entity_table(counts))
        else:
            counts = None
        known = [label in self._labels for s in self._file.sentences for label in s.labels]
        losses = predictions[CROSS_ENTROPIES][at_words]
        loss = float(losses[known].mean(dtype=np.float64))
        results = {**scores(self._file, predicted, counts), "eval_loss": loss}
        write_report(output_dir, self._file, predicted, np.where(known, losses, 0.0), results)
        return results


class TaggingPrediction(PredictionEvaluation):
    """Writes the labels predicted for a file."""

    def __init__(self, labels: Sequence[str], file: TaggedFile, *args: Any, **kwargs: Any) -> None:
        """Like :class:`TaggingEvaluation`; the file needs no labels."""
        super().__init__(*args, **kwargs)
        self._file = file
        self._labels = labels

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Writes the file's lines with the predicted labels; returns no scores."""
        predicted = predicted_labels(self._file, self._labels, predictions)
        with atomic_open(output_dir / PREDICTIONS_NAME) as file:
            file.writelines(f"{line}\n" for line in with_predictions(self._file, predicted))
        return {}


def figure_name(file: TaggedFile) -> str:
    """The name of the metric by which checkpoints are compared."""
    return "eval_f1" if are_of_entities(file.labels) else "eval_accuracy"


def predicted_labels(
    file: TaggedFile, labels: Sequence[str], predictions: Mapping[str, np.ndarray]
) -> list[list[str]]:
    """The predicted labels of each sentence, from predictions [N, S] for the records of a file."""
    numbers = predictions[LABELS][predictions[WORD_STARTS] > 0].tolist()
    if len(numbers) != file.num_words:
        raise ValueError(f"{len(numbers)} words were predicted, not {file.num_words}")
    following = (labels[number] for number in numbers)
    return [list(itertools.islice(following, len(s.words))) for s in file.sentences]


def scores(
    file: TaggedFile, predicted: Sequence[Sequence[str]], counts: Mapping[str, Counts] | None
) -> dict[str, float]:
    """The accuracy of words and, if ``counts`` is given, the scores over all entity types."""
    pairs = zip(file.sentences, predicted)
    correct = sum(sum(map(operator.eq, sentence.labels, found)) for sentence, found in pairs)
    found = {} if counts is None else total(counts.values()).scores
    found["accuracy"] = correct / file.num_words
    return {f"eval_{name}": value for name, value in found.items()}


def entity_table(counts: Mapping[str, Counts]) -> dict[str, dict[str, float]]:
    """The scores and counts of every entity type."""
    return {kind: {**found.scores, **found._asdict()} for kind, found in counts.items()}
