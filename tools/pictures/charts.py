"""Charts: learning rate schedules from their functions, memory from the table on its page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_tf.update.schedules import Schedule
from bert_tf.util.page import Axis
from tools.pictures.svg import Drawing, Point

_STYLES = ("blue", "orange", "green", "pink")
_STEPS, _WARMUP = 1000, 100

# Name of a schedule -> the curves of its panel, each with a label and its settings.
_PANELS: tuple[tuple[str, tuple[tuple[str, Mapping[str, Any]], ...]], ...] = (
    (
        "polynomial",
        (
            ("power 1 (default)", {}),
            ("power 2", {"options": {"decay_power": 2.0}}),
            ("power 0.5", {"options": {"decay_power": 0.5}}),
        ),
    ),
    ("cosine", (("", {}),)),
    (
        "warmup_stable_decay",
        tuple(
            (form, {"options": {"decay_share": 0.3, "decay_form": form}})
            for form in ("linear", "cosine", "1-sqrt")
        ),
    ),
    ("constant", (("", {}),)),
    ("exponential", (("0.7 every 100", {"options": {"decay_rate": 0.7, "decay_steps": 100}}),)),
    ("one_cycle", (("warm-up of 300", {"warmup_steps": 300}),)),
    ("google", (("", {}),)),
    (
        "polynomial, continued",
        (("--rewarm_at_step=500", {"rewarm_at_step": 500, "rewarm_steps": 100}),),
    ),
)


class _Plot(NamedTuple):
    """The position of a chart, and its axes."""

    drawing: Drawing
    corner: Point
    size: Point
    x: Axis
    y: Axis

    def point(self, x: float, y: float) -> Point:
        """Converts a point of the chart to pixels."""
        (left, top), (width, height) = self.corner, self.size
        return left + width * self.x.fraction(x), top + height * (1 - self.y.fraction(y))

    def draw_axes(self) -> None:
        """Draws the lines and numbers of both axes."""
        for value in self.y.ticks:
            ends = [self.point(self.x.low, value), self.point(self.x.high, value)]
            self.drawing.line(ends, "grid", width=1)
            at = (ends[0][0] - 6, ends[0][1] + 4)
            self.drawing.text(at, f"{value:g}", "soft", size=11, anchor="end")
        for value in self.x.ticks:
            x, y = self.point(value, self.y.low)
            self.drawing.line([(x, y), (x, y + 4)], "soft", width=1)
            self.drawing.text((x, y + 17), f"{value:,g}", "soft", size=11)


def schedules() -> Drawing:
    """The rate of every schedule over the updates of a training."""
    drawing = Drawing(900, 492, "Learning rate schedules: the rate over 1,000 updates")
    for number, (name, curves) in enumerate(_PANELS):
        corner = (46 + 216 * (number % 4), 44 + 232 * (number // 4))
        axes = Axis(0, _STEPS, (0, 500, 1000)), Axis(0, 1.05, (0, 0.5, 1))
        plot = _Plot(drawing, corner, (184, 120), *axes)
        drawing.text((corner[0], corner[1] - 14), name, "ink strong", anchor="start")
        plot.draw_axes()
        for place, (style, (label, settings)) in enumerate(zip(_STYLES, curves)):
            schedule = planned(name.partition(",")[0], **settings)
            steps = sorted({*range(0, _STEPS + 1, 5), _WARMUP - 1})  # google's drops after that
            points = [plot.point(step, schedule.rate(step)) for step in steps]
            drawing.line(points, style, width=2)
            if label:
                left, base = corner[0], corner[1] + 156 + 16 * place
                drawing.line([(left, base - 4), (left + 16, base - 4)], style, width=2)
                drawing.text((left + 22, base), label, "soft", size=11, anchor="start")
    note = "rate as a fraction of --learning_rate, over 1,000 updates; warm-up of 100"
    drawing.text((46, 480), note, "soft", size=12, anchor="start")
    return drawing


def planned(name: str, **settings: Any) -> Schedule:
    """A schedule with a peak of 1."""
    given = {"peak_rate": 1.0, "total_steps": _STEPS, "warmup_steps": _WARMUP, **settings}
    return Schedule(name=name, **given)


class Peaks(NamedTuple):
    """Measured peak memory of a program.

    Attributes:
      points: (sequences, MiB) for two batches.
      fits: the largest batch that fits.
      is_predicted: whether that was predicted from the line through the points.
    """

    points: list[Point]
    fits: float
    is_predicted: bool


_LIMIT_GIB = 16
_SUBJECTS = {
    "google-bert-amp": "orange",
    "transformers-bf16": "pink",
    "transformers-bf16-recompute": "pink",
    "ours-bf16": "blue",
    "ours-bf16-recompute": "blue",
}


def read_peaks(page: str) -> dict[str, Peaks]:
    """The peaks at 128 tokens by subject, from the table in the text of the memory page."""
    found = {}
    row = r"^\| (\S+) \| (\d+): (\d+), (\d+): (\d+) \| \**(\d+)(\**)"
    for name, *numbers, stars in re.findall(row, page, flags=re.MULTILINE):
        small, small_mib, large, large_mib, fits = map(float, numbers)
        found[name] = Peaks([(small, small_mib), (large, large_mib)], fits, len(stars) % 2 == 1)
    return found


def memory(page: str) -> Drawing:
    """Peak memory of a training over its batch; ``page`` is the text that contains the table."""
    drawing = Drawing(860, 420, "Peak memory of a training of BERT-base over the batch")
    axes = Axis(0, 900, range(0, 901, 100)), Axis(0, 17, range(0, 17, 4))
    plot = _Plot(drawing, (50, 40), (560, 320), *axes)
    plot.draw_axes()
    limit = [plot.point(x, _LIMIT_GIB) for x in (plot.x.low, plot.x.high)]
    drawing.line(limit, "soft", width=2)
    drawing.text((limit[1][0], limit[1][1] - 6), "16 GiB", "soft", size=12, anchor="end")
    drawing.text((50, 24), "peak of the process, GiB", "soft", size=12, anchor="start")
    drawing.text((610, 396), "sequences of 128 tokens in a batch", "soft", size=12, anchor="end")
    for place, (name, style) in enumerate(_SUBJECTS.items()):
        peaks, base = read_peaks(page)[name], 64 + 46 * place
        is_dashed = name.endswith("recompute")
        measured = [plot.point(batch, mib / 1024) for batch, mib in peaks.points]
        end = plot.point(peaks.fits, _LIMIT_GIB)
        drawing.line([*measured, end], style, width=2, dash=is_dashed)
        for point in measured:
            drawing.dot(point, style)
        drawing.line([(626, base - 4), (650, base - 4)], style, width=2, dash=is_dashed)
        drawing.text((658, base), name, "ink", size=12, anchor="start")
        fits = f"{peaks.fits:.0f} fit{', predicted' if peaks.is_predicted else ''}"
        drawing.text((658, base + 16), fits, "soft", size=12, anchor="start")
    drawing.text((626, 330), "Dots are measured, lines are drawn", "soft", size=11, anchor="start")
    drawing.text((626, 346), "through them to the largest batch.", "soft", size=11, anchor="start")
    return drawing
