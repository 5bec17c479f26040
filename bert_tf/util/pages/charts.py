"""Charts: lines and bars in an SVG stretched to its card, and HTML labels, which are not stretched.

The page's style sheet positions and colours them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_SIDE = 1000  # width and height of the drawing in its units
_MOST_DOTS = 40
_MOST_LOG_TICKS = 8
_FAR_APART = 3  # from this ratio on, a curve leaves most of a linear axis empty
_STYLES = ("first", "second", "third")  # the style sheet's classes of lines

Point = tuple[float, float]


class Line(NamedTuple):
    """A named curve."""

    name: str
    points: Sequence[Point]


class Marker(NamedTuple):
    """A named vertical line at ``x``."""

    name: str
    x: float


class Labels(NamedTuple):
    """The title of a chart, and what its axes show."""

    title: str
    x: str
    y: str


class Axis(NamedTuple):
    """A scale from ``low`` to ``high``, linear or logarithmic, with its labelled values."""

    low: float
    high: float
    ticks: Sequence[float]
    is_log: bool = False

    def fraction(self, value: float) -> float:
        """The position of a value between ``low``, 0, and ``high``, 1."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def line_chart(
    lines: Sequence[Line],
    labels: Labels,
    *,
    markers: Sequence[Marker] = (),
    y_log: bool = False,
    note: str = "",
) -> str:
    """A ``figure`` with at most three curves and their legend; empty without finite points.

    ``y_log`` makes the y axis logarithmic if all values are positive and far apart.
    """
    lines = [
        Line(name, [p for p in points if all(map(math.isfinite, p))]) for name, points in lines
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    x_axis, y_axis = (
        axis_of([point[side] for line in lines for point in line.points], log=log)
        for side, log in ((0, False), (1, y_log))
    )
    drawn, legend = [], []
    for style, line in zip(_STYLES, lines):
        drawn += _curve(line, style, x_axis, y_axis)
        legend.append(f'<li class="curve {style}">{escape(line.name)}</li>')
    for style, marker in zip(_STYLES, markers):
        if x_axis.low <= marker.x <= x_axis.high:
            drawn.append(_vertical(f"marker {style}", x_axis.fraction(marker.x)))
            legend.append(f'<li class="marker {style}">{escape(marker.name)}</li>')
    below = f'<ul class="legend">{"".join(legend)}</ul>'
    if note:
        below += f'<p class="note">{escape(note)}</p>'
    return _figure(drawn, x_axis, y_axis, labels, below=below)


def histogram(
    edges: Sequence[float],
    counts: Sequence[float],
    labels: Labels,
    *,
    y_log: bool = False,
) -> str:
    """A ``figure`` with a bar between consecutive ``edges``; empty without finite counts or edges.

    ``y_log`` makes the y axis logarithmic, which omits bars of 0.
    """
    counts = [count if math.isfinite(count) else 0 for count in counts]
    highest = max(counts, default=0)
    if not highest or not all(map(math.isfinite, edges)):
        return ""
    x_axis = axis_of(edges)
    y_axis = (
        Axis(0.5, 1.1 * highest, _log_ticks(1, highest), True) if y_log else axis_of([0, highest])
    )
    bars = [
        _bar(low, high, count, x_axis, y_axis)
        for low, high, count in zip(edges, edges[1:], counts)
        if count
    ]
    return _figure(bars, x_axis, y_axis, labels)


def axis_of(values: Sequence[float], *, log: bool = False) -> Axis:
    """An axis around the values; with ``log`` a logarithmic one if they are positive and apart."""
    low, high = min(values), max(values)
    if log and 0 < low <= high / _FAR_APART:
        return Axis(low / 1.05, high * 1.05, _log_ticks(low, high), True)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    ticks = _ticks(low, high)
    return Axis(ticks[0], ticks[-1], ticks)


def _ticks(low: float, high: float) -> list[float]:
    """About six numbers around both, spaced by 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    slack = 1e-9
    first, last = math.floor(low / step + slack), math.ceil(high / step - slack)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 2 and 5 times powers of ten between two; powers alone if these are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    many = len(ticks) > _MOST_LOG_TICKS
    return [tick for tick in ticks if f"{tick:e}".startswith("1.")] if many else ticks


def _figure(drawn: Sequence[str], x: Axis, y: Axis, labels: Labels, *, below: str = "") -> str:
    """Puts drawn elements on their axes."""
    title, x_label, y_label = map(escape, labels)
    grid = (_units(1 - y.fraction(value)) for value in y.ticks)
    drawing = [
        *(f'<line class="grid" x1="0" x2="{_SIDE}" y1="{at}" y2="{at}"/>' for at in grid),
        *(_vertical("grid", x.fraction(value)) for value in x.ticks),
        *drawn,
    ]
    texts = [
        *(_tick("y", "bottom", y.fraction(value), value) for value in y.ticks),
        *(_tick("x", "left", x.fraction(value), value) for value in x.ticks),
        f'<span class="label y">{y_label}</span>',
        f'<span class="label x">{x_label}</span>',
    ]
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>\n<div class="plot">'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}: {y_label} over {x_label}">\n'
        + "\n".join(drawing)
        + f"\n</svg>\n{''.join(texts)}</div>\n{below}</figure>"
    )


def _text(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return text.replace("-", "−")


def _units(fraction: float) -> str:
    """A coordinate in the units of the drawing."""
    return f"{_SIDE * fraction:.1f}".removesuffix(".0")


def _tick(axis: str, side: str, fraction: float, value: float) -> str:
    return f'<span class="tick {axis}" style="{side}:{100 * fraction:.2f}%">{_text(value)}</span>'


def _vertical(style: str, fraction: float) -> str:
    x = _units(fraction)
    return f'<line class="{style}" x1="{x}" x2="{x}" y1="0" y2="{_SIDE}"/>'


def _curve(line: Line, style: str, x_axis: Axis, y_axis: Axis) -> list[str]:
    places = [(_units(x_axis.fraction(x)), _units(1 - y_axis.fraction(y))) for x, y in line.points]
    path = " ".join(f"{x},{y}" for x, y in places)
    elements = [f'<polyline class="curve {style}" points="{path}"/>']
    if len(places) <= _MOST_DOTS:
        # A line of zero length with round ends is a circle even if the drawing is stretched.
        elements += [
            f'<path class="dot {style}" d="M{x} {y}h.01">'
            f"<title>{escape(line.name)} at {_text(point[0])}: {point[1]:.4g}</title></path>"
            for (x, y), point in zip(places, line.points)
        ]
    return elements


def _bar(low: float, high: float, count: float, x_axis: Axis, y_axis: Axis) -> str:
    left, right, height = x_axis.fraction(low), x_axis.fraction(high), y_axis.fraction(count)
    return (
        f'<rect class="first" x="{_units(left)}" width="{_units(right - left)}" '
        f'y="{_units(1 - height)}" height="{_units(height)}">'
        f"<title>{_text(low)} to {_text(high)}: {_text(count)}</title></rect>"
    )
