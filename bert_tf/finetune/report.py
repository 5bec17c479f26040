"""``report.html`` of fine-tuning: results, charts of the run's logs, and what a task adds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.train.run_log import EVALUATIONS, STEPS, read_history
from bert_tf.train.start_point import find_start
from bert_tf.util.page import (
    MIXED,
    Chart,
    Example,
    Examples,
    Part,
    Point,
    Section,
    Table,
    write_page,
)

REPORT_NAME = "report.html"

_MOST_POINTS = 300
_MOST_CLASSES = 20  # of a confusion matrix; more are listed by pairs
_MOST_CONFUSIONS = 40
_MOST_EXAMPLES = 1000  # with more, pages open slowly

Log = Sequence[Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a task reports of a file that it has predicted.

    Attributes:
      title: of the page.
      results: all results of the evaluation.
      scores: name of a result -> its name in large type; the first three are drawn over steps.
      details: further names and values.
      tables, charts: next to those of the run's logs.
      sections: further sections.
      examples: the examples to browse.
      digits: the number of decimals in large type.
      y_label: what scores are counted in.
      loss_unit: what losses are counted in.
    """

    title: str
    results: Mapping[str, float]
    scores: Mapping[str, str]
    details: Mapping[str, object]
    examples: Examples
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    sections: Sequence[Section] = ()
    digits: int = 4
    y_label: str = "metric"
    loss_unit: str = "nats"

    def write(self, output_dir: Path) -> None:
        """Writes the page, atomically, with charts of the logs in ``output_dir``."""
        shown = {key: name for key, name in self.scores.items() if key in self.results}
        large = {name: f"{self.results[key]:.{self.digits}f}" for key, name in shown.items()}
        rows = [(name, f"{value:,.10g}") for name, value in self.results.items()]
        everything = Table("By the names in eval_results.json", ("score", "value"), rows)
        charts = [*self._charts_of_logs(output_dir, list(shown)[:3]), *self.charts]
        parts: list[Part] = [
            Section("Results", large, self.details, charts=charts, tables=self.tables),
            *self.sections,
            self.examples,
            Section("All scores", tables=[everything]),
        ]
        write_page(output_dir / REPORT_NAME, self.title, parts)

    def _charts_of_logs(self, output_dir: Path, charted: Sequence[str]) -> list[Chart]:
        """Losses and scores over steps; a chart without a curve of two points is left out."""
        training, evaluations = (read_history(output_dir, name) for name in (STEPS, EVALUATIONS))
        # During training, this evaluation is logged only after its report is written.
        evaluations.append({**self.results, "step": find_start(output_dir).step})
        points, size = averaged(values_over_steps(training, "loss"))
        losses = {"training": points, "evaluation": values_over_steps(evaluations, "eval_loss")}
        scores = {n.removeprefix("eval_"): values_over_steps(evaluations, n) for n in charted}
        x_label = "step (optimizer updates)"
        note = f"Each training point is the mean of {size} logged steps." if size > 1 else ""
        charts = [
            Chart("Loss", x_label, f"loss ({self.loss_unit})", losses, y_log=True, note=note),
            Chart("Evaluations", x_label, self.y_label, scores),
        ]
        return [c for c in charts if any(len(points) > 1 for points in c.lines.values())]


def values_over_steps(log: Log, name: str) -> list[Point]:
    """(step, value), sorted by step.

    If a step is repeated, the later line counts; values that are not finite (of a diverged run) are
    left out.
    """
    values = {line["step"]: line[name] for line in log if "step" in line and name in line}
    return [(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]


def averaged(points: Sequence[Point], most: int = _MOST_POINTS) -> tuple[list[Point], int]:
    """At most ``most`` points, each the mean of several neighbours, and their number."""
    size = max(1, math.ceil(len(points) / most))
    blocks = [points[first : first + size] for first in range(0, len(points), size)]
    means = [tuple(sum(column) / len(block) for column in zip(*block)) for block in blocks]
    return means, size


def worst_examples(
    heading: str, costs: Sequence[Any], example: Callable[[int], Example]
) -> Examples:
    """The examples with the largest costs, the worst first; ``example`` makes one of its number."""
    order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)[:_MOST_EXAMPLES]
    if len(order) < len(costs):
        heading += f": the {len(order):,} worst of {len(costs):,}"
    return Examples(heading, [example(n) for n in order], ("worst first", MIXED))


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
