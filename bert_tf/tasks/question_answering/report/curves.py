"""The report's line charts: logs over steps, and scores over thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bert_tf.tasks.finetuning.log_charts import chart_over_steps, values_over_steps
from bert_tf.tasks.question_answering.report.content import ReportData
from bert_tf.util.pages.charts import Line, Marker, Point, line_chart

_MOST_POINTS = 300
_MARGIN = 0.1  # as a fraction of a curve's width
_FLAT = 0.02  # fraction of a score's range; smaller changes are ignored


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Evenly spaced points, including the first, the last and the highest."""
    size = max(1, math.ceil(len(points) / most))
    highest = max(range(len(points)), key=lambda index: points[index][1], default=0)
    chosen = {*range(0, len(points), size), highest, len(points) - 1}
    return [points[index] for index in sorted(chosen) if 0 <= index < len(points)]


def evaluation_chart(data: ReportData) -> str:
    """F1 and exact match over steps; empty without an evaluation log."""
    log = data.evaluation_log
    lines = [
        Line("F1", values_over_steps(log, "f1"), "first"),
        Line("exact match", values_over_steps(log, "exact_match", "exact"), "second"),
    ]
    return chart_over_steps(lines, title="Evaluations", y_label="percent")


ThresholdCurve = list[tuple[float, float, float]]


def extended(curve: ThresholdCurve, thresholds: Sequence[float]) -> ThresholdCurve:
    """Extends a threshold curve horizontally to include ``thresholds``.

    The first point, which may be far below all others, is moved close to them.
    """
    if len(curve) > 2:
        (first, exact, f1), second = curve[0], curve[1][0]
        close = second - _MARGIN * (curve[-1][0] - second)
        curve = [(max(first, close), exact, f1), *curve[1:]]
    below = [(x, *curve[0][1:]) for x in thresholds if x < curve[0][0]]
    above = [(x, *curve[-1][1:]) for x in thresholds if x > curve[-1][0]]
    return sorted(below) + curve + sorted(above)


def without_flat_ends(curve: ThresholdCurve, keep: Sequence[float]) -> ThresholdCurve:
    """Removes the ends of a threshold curve at which scores do not change.

    The thresholds in ``keep`` stay within the curve.
    """
    columns = list(zip(*curve))[1:]
    slack = _FLAT * max(max(column) - min(column) for column in columns)

    def first_change(points: ThresholdCurve) -> int:
        ends = points[0][1:]
        changed = (
            index
            for index, point in enumerate(points)
            if any(abs(a - b) > slack for a, b in zip(point[1:], ends))
        )
        return next(changed, len(points))

    first, last = first_change(curve), len(curve) - first_change(curve[::-1])
    if first == len(curve):
        return curve
    low, high = curve[first - 1][0], curve[last][0]
    low, high = min([low, *keep]), max([high, *keep])
    return [point for point in curve if low <= point[0] <= high]


def threshold_chart(data: ReportData) -> str:
    """Scores over the threshold of "no answer", with the chosen and the best threshold."""
    curve: ThresholdCurve = sorted(p for p in data.threshold_curve if all(map(math.isfinite, p)))
    best = data.best_threshold and data.best_threshold.threshold
    marked = (data.chosen_threshold, best)
    keep = [x for x in marked if x is not None and math.isfinite(x)]
    if curve:
        curve = without_flat_ends(extended(curve, keep), keep)
    lines = [
        Line("F1", thinned([(threshold, f1) for threshold, _, f1 in curve]), "first"),
        Line(
            "exact match", thinned([(threshold, exact) for threshold, exact, _ in curve]), "second"
        ),
    ]
    markers = [
        Marker(f"{name} threshold {threshold:.3f}", threshold, style)
        for name, threshold, style in (
            ("chosen", data.chosen_threshold, "chosen"),
            ("best F1 at", best, "best"),
        )
        if threshold is not None
    ]
    return line_chart(
        lines,
        title="Threshold of “no answer”",
        x_label="score of no answer − score of the best answer",
        y_label="percent",
        markers=markers,
        note="Questions are answered unless this difference is above the threshold.",
    )
