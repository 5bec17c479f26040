"""Charts of a run's logs, for reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.util.pages.charts import Line, Point, line_chart

_MOST_POINTS = 300

Log = Sequence[Mapping[str, float]]


def values_over_steps(log: Log, *names: str) -> list[Point]:
    """(step, value), sorted by step, for the first of ``names`` in the log.

    If a resumed run repeated a step, the later line counts; values that are not finite (of a
    diverged run) are left out.
    """
    found = [name for name in names if any(name in line for line in log)]
    if not found:
        return []
    name = found[0]
    values = {line["step"]: line[name] for line in log if "step" in line and name in line}
    return [(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]


def averaged(points: Sequence[Point], most: int = _MOST_POINTS) -> tuple[list[Point], int]:
    """At most ``most`` points, each the mean of several neighbours, and their number."""
    size = max(1, math.ceil(len(points) / most))
    blocks = [points[first : first + size] for first in range(0, len(points), size)]
    means = [tuple(sum(column) / len(block) for column in zip(*block)) for block in blocks]
    return means, size


def loss_chart(
    training: Log, evaluations: Log, *, evaluated: str = "loss", unit: str = "nats"
) -> str:
    """Training and evaluation loss over steps; empty without logs.

    ``evaluated`` is the name of the loss in the log of evaluations, ``unit`` what it is counted in.
    """
    points, size = averaged(values_over_steps(training, "loss"))
    lines = [
        Line("training", points, "first"),
        Line("evaluation", values_over_steps(evaluations, evaluated), "second"),
    ]
    return chart_over_steps(
        lines,
        title="Loss",
        y_label=f"loss ({unit})",
        y_log=True,
        note=f"Each training point is the mean of {size} logged steps." if size > 1 else "",
    )


def chart_over_steps(lines: Sequence[Line], **options: Any) -> str:
    """A chart over steps; empty if every curve is a single point."""
    if all(len(line.points) < 2 for line in lines):
        return ""
    return line_chart(lines, x_label="step (optimizer updates)", x_from_zero=True, **options)
