"""Parts that reports of fine-tuning tasks share: results, charts of a run's logs, confusions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.train.run_log import EVALUATIONS, STEPS, read_history
from bert_tf.train.start_point import find_start
from bert_tf.util.pages.charts import Labels, Line, Point, line_chart
from bert_tf.util.pages.page import Section, Table

REPORT_NAME = "report.html"

_MOST_POINTS = 300
_MOST_CLASSES = 20  # of a confusion matrix; more are listed by pairs
_MOST_CONFUSIONS = 40

Log = Sequence[Mapping[str, float]]


def results_section(
    output_dir: Path,
    details: Mapping[str, object],
    results: Mapping[str, float],
    *,
    charted: Sequence[str],
    unit: str = "nats",
) -> Section:
    """The results of an evaluation after ``details``, and charts of the run's logs.

    ``charted`` are the results to show large and to draw over steps, ``unit`` is that of the loss.
    """
    training, evaluations = (read_history(output_dir, name) for name in (STEPS, EVALUATIONS))
    # This evaluation is logged only after its report is written.
    evaluations.append({**results, "step": find_start(output_dir).step})
    shown = {name.removeprefix("eval_"): f"{value:.4f}" for name, value in results.items()}
    names = (name.removeprefix("eval_") for name in charted)
    return Section(
        "Results",
        figures={name: shown[name] for name in names if name in shown},
        details={**details, **shown},
        charts=run_charts(training, evaluations, charted=charted, y_label="metric", unit=unit),
    )


def run_charts(
    training: Log,
    evaluations: Log,
    *,
    charted: Sequence[str],
    y_label: str,
    unit: str = "nats",
) -> list[str]:
    """Losses and scores over steps; a chart is empty if each of its curves is a single point.

    Args:
      training, evaluations: the logs.
      charted: the names of at most three scores in the log of evaluations.
      y_label: what they are.
      unit: what losses are counted in.
    """
    points, size = averaged(values_over_steps(training, "loss"))
    losses = [
        Line("training", points),
        Line("evaluation", values_over_steps(evaluations, "eval_loss")),
    ]
    scores = [
        Line(name.removeprefix("eval_"), values_over_steps(evaluations, name)) for name in charted
    ]
    note = f"Each training point is the mean of {size} logged steps." if size > 1 else ""
    return [
        _over_steps(losses, "Loss", f"loss ({unit})", y_log=True, note=note),
        _over_steps(scores, "Evaluations", y_label),
    ]


def _over_steps(lines: Sequence[Line], title: str, y_label: str, **options: Any) -> str:
    if all(len(line.points) < 2 for line in lines):
        return ""
    return line_chart(lines, Labels(title, "step (optimizer updates)", y_label), **options)


def values_over_steps(log: Log, name: str) -> list[Point]:
    """(step, value), sorted by step.

    If a resumed run repeated a step, the later line counts; values that are not finite (of a
    diverged run) are left out.
    """
    values = {line["step"]: line[name] for line in log if "step" in line and name in line}
    return [(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]


def averaged(points: Sequence[Point], most: int = _MOST_POINTS) -> tuple[list[Point], int]:
    """At most ``most`` points, each the mean of several neighbours, and their number."""
    size = max(1, math.ceil(len(points) / most))
    blocks = [points[first : first + size] for first in range(0, len(points), size)]
    means = [tuple(sum(column) / len(block) for column in zip(*block)) for block in blocks]
    return means, size


def confusion_table(
    classes: Sequence[str], labels: np.ndarray, predicted: np.ndarray, *, unit: str
) -> Table:
    """The confusion matrix; of many classes, the pairs that are most often confused.

    Args:
      classes: names of the classes.
      labels, predicted: numbers of classes, [N] integers.
      unit: what is counted.
    """
    matrix = np.zeros((len(classes), len(classes)), int)
    np.add.at(matrix, (labels, predicted), 1)
    if len(classes) <= _MOST_CLASSES:
        rows = [(name, *map(str, row)) for name, row in zip(classes, matrix)]
        caption = "Confusion matrix: label in rows, prediction in columns"
        return Table(caption, ("label", *classes), rows)
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    pairs = (np.unravel_index(place, matrix.shape) for place in order)
    rows = [(classes[a], classes[b], str(matrix[a, b])) for a, b in pairs if matrix[a, b]]
    return Table("Most frequent confusions", ("label", "predicted as", unit), rows)
