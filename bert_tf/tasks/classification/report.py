"""``report.html`` of a classification: scores, classes, confusions, calibration, mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import numpy as np

from bert_tf.tasks.classification.answers import Answers, labels_of
from bert_tf.tasks.classification.metrics import (
    calibration,
    counts_of,
    expected_calibration_error,
)
from bert_tf.tasks.classification.text_task import TextFile
from bert_tf.tasks.finetuning.log_charts import chart_over_steps, loss_chart, values_over_steps
from bert_tf.train.run_log import EVALUATIONS, STEPS, read_history
from bert_tf.util.pages.charts import Line, histogram, line_chart
from bert_tf.util.pages.plain_page import Section, Table, write_page

REPORT_NAME = "report.html"

_MOST_MISTAKES = 30
_MOST_CLASSES = 20  # of a confusion matrix; more are listed by pairs
_MOST_CONFUSIONS = 40
_BINS = 20
_STYLES = ("first", "second", "third")


def write_report(
    output_dir: Path, file: TextFile, answers: Answers, results: Mapping[str, float]
) -> Path:
    """Writes the page for a file with labels and what was predicted; returns its path."""
    labels = labels_of(file)
    path = output_dir / REPORT_NAME
    sections = [
        _results(output_dir, file, results),
        *([_ratings(answers, labels)] if file.task.is_regression else _classes(answers, labels)),
        _mistakes(file, answers, labels),
    ]
    names = " and ".join(each.name for each in file.paths)
    write_page(path, f"{file.task.name}: {names}", sections)
    return path


def _results(output_dir: Path, file: TextFile, results: Mapping[str, float]) -> Section:
    training, evaluations = (read_history(output_dir, name) for name in (STEPS, EVALUATIONS))
    lines = [
        Line(name.removeprefix("eval_"), values_over_steps(evaluations, name), style)
        for name, style in zip(file.score_names, _STYLES)
    ]
    shown = {name.removeprefix("eval_"): f"{value:.4f}" for name, value in results.items()}
    return Section(
        "Results",
        details={"file": ", ".join(map(str, file.paths)), "texts": f"{len(file.rows):,}", **shown},
        charts=[
            loss_chart(training, evaluations, evaluated="eval_loss"),
            chart_over_steps(lines, title="Evaluations", y_label="metric"),
        ],
    )


def _classes(answers: Answers, labels: np.ndarray) -> Iterator[Section]:
    task = answers.task
    predicted, truth = answers.predicted, labels
    if not task.multi_label:
        numbers = np.arange(len(task.classes))
        predicted, truth = predicted[:, None] == numbers, labels[:, None] == numbers
    found = counts_of(truth, predicted)
    columns = ("class", "precision", "recall", "F1", "texts", "predicted")
    rows = [
        (
            f"{name} (not in F1)" if name == task.negative else name,
            f"{found.precision[n]:.3f}",
            f"{found.recall[n]:.3f}",
            f"{found.f1[n]:.3f}",
            f"{found.true[n] + found.missed[n]:,}",
            f"{found.true[n] + found.wrong[n]:,}",
        )
        for n, name in enumerate(task.classes)
    ]
    tables: list[Table] = [("Classes", columns, rows)]
    if not task.multi_label:
        tables.append(_confusions(answers, labels))
    yield Section("Classes", tables=tables)
    yield _calibration(answers, truth)


def _confusions(answers: Answers, labels: np.ndarray) -> Table:
    """The confusion matrix; of many classes, the pairs that are most often confused."""
    classes = answers.task.classes
    matrix = np.zeros((len(classes), len(classes)), int)
    np.add.at(matrix, (labels.astype(int), answers.predicted), 1)
    if len(classes) <= _MOST_CLASSES:
        rows = [(name, *map(str, row)) for name, row in zip(classes, matrix)]
        return "Confusion matrix: label in rows, prediction in columns", ("label", *classes), rows
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    pairs = (np.unravel_index(place, matrix.shape) for place in order)
    rows = [(classes[a], classes[b], str(matrix[a, b])) for a, b in pairs if matrix[a, b]]
    return "Most frequent confusions", ("label", "predicted as", "texts"), rows


def _calibration(answers: Answers, truth: np.ndarray) -> Section:
    """How far probabilities can be believed; with several classes, of each text and class."""
    if answers.task.multi_label:
        confidence, is_right = answers.probabilities.ravel(), truth.ravel()
        what = "texts with a class, by its probability"
    else:
        confidence = answers.probabilities.max(axis=1)
        is_right = truth[np.arange(len(truth)), answers.predicted]
        what = "right predictions, by their probability"
    bins = calibration(confidence, is_right)
    error = expected_calibration_error(bins)
    low = bins[0].low
    chart = line_chart(
        [
            Line("found", [(each.confidence, each.accuracy) for each in bins], "first"),
            Line("calibrated", [(low, low), (1.0, 1.0)], "second"),
        ],
        title="Calibration",
        x_label="probability",
        y_label=f"fraction of {what}",
    )
    rows = [
        (
            f"{each.low:.1f} to {each.high:.1f}",
            f"{each.predictions:,}",
            f"{each.confidence:.3f}",
            f"{each.accuracy:.3f}",
        )
        for each in bins
    ]
    table: Table = ("Calibration", ("probability", "predictions", "mean", "fraction right"), rows)
    return Section(
        "Calibration",
        details={"expected calibration error": f"{error:.4f}"},
        charts=[chart],
        tables=[table],
    )


def _ratings(answers: Answers, labels: np.ndarray) -> Section:
    """Predictions over labels, and the distribution of errors."""
    predicted = answers.predicted
    order = np.argsort(labels, kind="stable")
    parts = [part for part in np.array_split(order, min(_BINS, len(order))) if len(part)]
    found = [(float(labels[part].mean()), float(predicted[part].mean())) for part in parts]
    low, high = float(labels.min()), float(labels.max())
    counts, edges = np.histogram(predicted - labels, bins=_BINS)
    return Section(
        "Ratings",
        details={
            "mean absolute error": f"{np.abs(predicted - labels).mean():.4f}",
            "root mean squared error": f"{np.sqrt(np.square(predicted - labels).mean()):.4f}",
        },
        charts=[
            line_chart(
                [
                    Line("mean prediction", found, "first"),
                    Line("perfect", [(low, low), (high, high)], "second"),
                ],
                title="Predictions",
                x_label="label",
                y_label="prediction",
            ),
            histogram(
                edges.tolist(),
                counts.tolist(),
                title="Errors",
                x_label="prediction − label",
                y_label="texts",
            ),
        ],
    )


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
    text = "<br>".join(escape(part) for part in file.rows[number].sentences)
    shown = answers.shown(number)
    if file.task.is_regression:
        said = f"label {labels[number]:g}, predicted {shown}"
    elif file.task.multi_label:
        names = (file.task.classes[n] for n in np.flatnonzero(labels[number]))
        said = f"labels {', '.join(names) or 'none'}; predicted {shown or 'none'}"
    else:
        probabilities, label = answers.probabilities[number], int(labels[number])
        said = (
            f"label {file.task.classes[label]} ({probabilities[label]:.3f}), "
            f"predicted {shown} ({probabilities.max():.3f})"
        )
    return f"{text}<br><strong>{escape(said)}</strong>"
