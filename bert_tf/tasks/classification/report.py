"""``report.html`` of a classification: scores, classes, confusions, calibration, mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bert_tf.finetune.report import REPORT_NAME, confusion_table, results_section
from bert_tf.model_directory.classes import MULTI_LABEL
from bert_tf.tasks.classification.answers import Answers, labels_of
from bert_tf.tasks.classification.metrics import (
    calibration,
    counts_of,
    expected_calibration_error,
)
from bert_tf.tasks.classification.texts import CORRELATIONS, TextFile, TextTask
from bert_tf.util.pages.charts import Labels, Line, histogram, line_chart
from bert_tf.util.pages.page import Section, Table, hint, mark, write_page

_MOST_MISTAKES = 30
_BINS = 20


def write_report(
    output_dir: Path, file: TextFile, answers: Answers, results: Mapping[str, float]
) -> None:
    """Writes the page for a file with labels and what was predicted."""
    labels = labels_of(file)
    sections = [
        _results(output_dir, file, results),
        *_by_kind(file.task, answers, labels),
        _mistakes(file, answers, labels),
    ]
    names = " and ".join(each.name for each in file.paths)
    write_page(output_dir / REPORT_NAME, f"{file.task.name}: {names}", sections)


def _results(output_dir: Path, file: TextFile, results: Mapping[str, float]) -> Section:
    details = {"file": ", ".join(map(str, file.paths)), "texts": f"{len(file.rows):,}"}
    if not file.task.is_regression:
        return results_section(output_dir, details, results, charted=file.score_names)
    # Errors, in the unit of the ratings, do not fit on the axis of correlations.
    charted = [part.named(f"eval_{name}") for part in file.parts for name in CORRELATIONS]
    return results_section(output_dir, details, results, charted=charted, unit="squared error")


def _by_kind(task: TextTask, answers: Answers, labels: np.ndarray) -> Iterator[Section]:
    if task.is_regression:
        yield _ratings(answers, labels)
        return
    names = task.classes.labels
    predicted, truth = answers.predicted, labels
    if not task.multi_label:
        numbers = np.arange(len(names))
        predicted, truth = predicted[:, None] == numbers, labels[:, None] == numbers
    found = counts_of(truth, predicted)
    columns = ("class", "precision", "recall", "F1", "texts", "predicted")
    rows = [
        (
            f"{name} (not in F1)" if name == task.negative else name,
            f"{found.precision[n]:.3f}",
            f"{found.recall[n]:.3f}",
            f"{found.f1[n]:.3f}",
            f"{found.labelled[n]:,}",
            f"{found.predicted[n]:,}",
        )
        for n, name in enumerate(names)
    ]
    tables = [Table("Classes", columns, rows)]
    if not task.multi_label:
        numbers = labels.astype(int)
        tables.append(confusion_table(names, numbers, answers.predicted, unit="texts"))
    yield Section("Classes", tables=tables)
    yield _calibration(answers, truth)


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
    lines = [
        Line("observed", [(each.confidence, each.accuracy) for each in bins]),
        Line("calibrated", [(low, low), (1.0, 1.0)]),
    ]
    rows = [
        (f"{each.low:.1f} to {each.high:.1f}", f"{each.predictions:,}", f"{each.accuracy:.3f}")
        for each in bins
    ]
    return Section(
        "Calibration",
        details={"expected calibration error": f"{expected_calibration_error(bins):.4f}"},
        charts=[line_chart(lines, Labels("Calibration", "probability", "fraction"), note=what)],
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
    lines = [Line("mean prediction", means), Line("perfect", [(low, low), (high, high)])]
    errors = predicted - labels
    counts, edges = np.histogram(errors[np.isfinite(errors)], bins=_BINS)
    of_errors = Labels("Errors", "prediction − label", "texts")
    charts = [
        line_chart(lines, Labels("Predictions", "label", "prediction")),
        histogram(edges.tolist(), counts.tolist(), of_errors),
    ]
    return Section("Ratings", charts=charts)


def _mistakes(file: TextFile, answers: Answers, labels: np.ndarray) -> Section:
    """The wrong predictions with the largest losses."""
    predicted = answers.predicted
    wrong = predicted != labels
    if wrong.ndim == 2:
        wrong = wrong.any(axis=1)
    losses = answers.losses(labels)
    worst = [n for n in np.argsort(-losses, kind="stable") if wrong[n]][:_MOST_MISTAKES]
    return Section(
        f"The {len(worst)} worst mistakes" if worst else "No mistakes",
        cards=[_card(file, answers, labels, int(number)) for number in worst],
    )


def _card(file: TextFile, answers: Answers, labels: np.ndarray, number: int) -> str:
    shown = answers.shown(number)
    if file.task.is_regression:
        said = f"label {labels[number]:g}, predicted {shown}"
    elif file.task.multi_label:
        names = (file.task.classes.labels[n] for n in np.flatnonzero(labels[number]))
        said = f"labels {', '.join(names) or 'none'}; predicted {shown or 'none'}"
    else:
        probabilities, label = answers.probabilities[number], int(labels[number])
        said = (
            f"label {file.task.classes.labels[label]} ({probabilities[label]:.3f}), "
            f"predicted {shown} ({probabilities.max():.3f})"
        )
    return hint(said) + mark("\n".join(file.rows[number].sentences))
