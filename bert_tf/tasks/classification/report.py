"""``report.html`` of a classification: scores, classes, confusions, calibration, worst texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.finetune.report import Report, confusion_table, worst_examples
from bert_tf.model_directory.classes import MULTI_LABEL
from bert_tf.tasks.classification.answers import Answers, labels_of
from bert_tf.tasks.classification.metrics import (
    calibration,
    counts_of,
    expected_calibration_error,
)
from bert_tf.tasks.classification.texts import CORRELATIONS, TextFile, TextTask
from bert_tf.util.page import Chart, Example, Section, Table

_BINS = 20
_MOST_CANDIDATES = 10


def write_report(
    output_dir: Path, file: TextFile, answers: Answers, results: Mapping[str, float]
) -> None:
    """Writes the page for a file with labels and what was predicted."""
    labels, is_regression = labels_of(file), file.task.is_regression
    names = " and ".join(each.name for each in file.paths)
    # Errors, in the unit of the ratings, do not fit on the axis of correlations.
    ranks = [part.named(f"eval_{name}") for part in file.parts for name in CORRELATIONS]
    scores = ranks if is_regression else file.score_names
    losses = answers.losses(labels).tolist()
    Report(
        f"{file.task.name}: {names}",
        results,
        {name: name.removeprefix("eval_") for name in scores},
        {"file": ", ".join(map(str, file.paths)), "texts": f"{len(file.rows):,}"},
        worst_examples("Texts", losses, lambda n: _example(file, answers, labels[n], n)),
        sections=_sections(file.task, answers, labels),
        loss_unit="squared error" if is_regression else "nats",
    ).write(output_dir)


def _sections(task: TextTask, answers: Answers, labels: np.ndarray) -> list[Section]:
    if task.is_regression:
        return [_ratings(answers, labels)]
    names = task.classes.labels
    predicted, truth = answers.predicted, labels
    if not task.multi_label:
        numbers = np.arange(len(names))
        predicted, truth = predicted[:, None] == numbers, labels[:, None] == numbers
    counts = counts_of(truth, predicted)
    columns = ("class", "precision", "recall", "F1", "texts", "predicted")
    rows = [
        (
            f"{name} (not in F1)" if name == task.negative else name,
            f"{counts.precision[n]:.3f}",
            f"{counts.recall[n]:.3f}",
            f"{counts.f1[n]:.3f}",
            f"{counts.labelled[n]:,}",
            f"{counts.predicted[n]:,}",
        )
        for n, name in enumerate(names)
    ]
    tables = [Table("Classes", columns, rows)]
    if not task.multi_label:
        numbers = labels.astype(int)
        tables.append(confusion_table(names, numbers, answers.predicted, unit="texts"))
    return [Section("Classes", tables=tables), _calibration(answers, truth)]


def _calibration(answers: Answers, truth: np.ndarray) -> Section:
    """How far probabilities can be believed; with several classes, of each text and class."""
    if answers.classes.kind == MULTI_LABEL:
        confidence, is_right = answers.probabilities.ravel(), truth.ravel()
        what = "Fraction of the texts that have a class, by its probability."
    else:
        confidence = answers.probabilities.max(axis=1)
        is_right = truth[np.arange(len(truth)), answers.predicted]
        what = "Fraction of right predictions, by their probability."
    bins = calibration(confidence, is_right)
    low = bins[0].low
    lines = {
        "observed": [(each.confidence, each.accuracy) for each in bins],
        "calibrated": [(low, low), (1.0, 1.0)],
    }
    rows = [
        (f"{each.low:.1f} to {each.high:.1f}", f"{each.predictions:,}", f"{each.accuracy:.3f}")
        for each in bins
    ]
    return Section(
        "Calibration",
        details={"expected calibration error": f"{expected_calibration_error(bins):.4f}"},
        charts=[Chart("Calibration", "probability", "fraction", lines, note=what)],
        tables=[Table("Calibration", ("probability", "predictions", "fraction right"), rows)],
    )


def _ratings(answers: Answers, labels: np.ndarray) -> Section:
    """Predictions over labels, and the distribution of errors."""
    predicted = answers.predicted
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    # Equal labels are one point of the curve.
    starts = np.searchsorted(ranked, ranked[np.arange(_BINS) * len(ranked) // _BINS])
    parts = np.split(order, np.unique(starts)[1:])
    means = [(float(labels[part].mean()), float(predicted[part].mean())) for part in parts]
    low, high = float(labels.min()), float(labels.max())
    lines = {"mean prediction": means, "perfect": [(low, low), (high, high)]}
    errors = predicted - labels
    counts, edges = (
        side.tolist() for side in np.histogram(errors[np.isfinite(errors)], bins=_BINS)
    )
    charts = [
        Chart("Predictions", "label", "prediction", lines),
        Chart("Errors", "prediction − label", "texts", edges=edges, counts=counts),
    ]
    return Section("Ratings", charts=charts)


def _example(file: TextFile, answers: Answers, label: Any, number: int) -> Example:
    """A text with its label, as in ``labels_of``, and what is predicted of it."""
    task = file.task
    filters, candidates = {}, []
    if task.is_regression:
        true, predicted = [f"{label:g}"], [answers.shown(number)]
    else:
        chosen = np.flatnonzero(label) if task.multi_label else np.array([label], int)
        true, predicted = [task.classes.labels[n] for n in chosen], [*answers.names(number)]
        filters = {
            "Outcome": "right" if true == predicted else "wrong",
            "True": ", ".join(true) or "none",
            "Predicted": ", ".join(predicted) or "none",
        }
        probabilities = answers.probabilities[number]
        best = np.argsort(-probabilities, kind="stable")[:_MOST_CANDIDATES]
        candidates = [(task.classes.labels[n], float(probabilities[n])) for n in best]
    return Example(
        str(number + 1),
        f"Text {number + 1:,}",
        "\n".join(file.rows[number].sentences),
        marks={},
        answers={"true": true, "predicted": predicted},
        facts=[],
        filters=filters,
        candidates=candidates,
    )
