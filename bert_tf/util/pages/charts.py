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
_MOST_LOG_TICKS = 6
_FAR_APART = 3  # from this ratio on, a curve leaves most of a linear axis empty

Point = tuple[float, float]


class Line(NamedTuple):
    """A named curve; ``style`` is the CSS class that colours it."""

    name: str
    points: Sequence[Point]
    style: str


class Marker(NamedTuple):
    """A named vertical line at ``x``."""

    name: str
    x: float
    style: str


class Axis(NamedTuple):
    """A scale from ``low`` to ``high``, linear or logarithmic, with its labelled values."""

    low: float
    high: float
    ticks: Sequence[float]
    is_log: bool = False

    def fraction(self, value: float) -> float:
        """The position of a value between ``low``, 0, and ``high``, 1."""
        low, high, value = (
            map(math.log, (self.low, self.high, value))
            if self.is_log
            else (self.low, self.high, value)
        )
        return (value - low) / (high - low)


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    markers: Sequence[Marker] = (),
    x_from_zero: bool = False,
    y_log: bool = False,
    note: str = "",
) -> str:
    """A ``figure`` with the curves, their legend and a caption; empty without finite points.

    ``x_from_zero`` starts the x axis at zero unless that would leave a wide gap; ``y_log`` makes
    the y axis logarithmic if all values are positive and far apart.
    """
    lines = [
        line._replace(points=[point for point in line.points if all(map(math.isfinite, point))])
        for line in lines
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    x_axis = _x_axis([x for line in lines for x, _ in line.points], from_zero=x_from_zero)
    y_axis = _y_axis([y for line in lines for _, y in line.points], log=y_log)
    inside = [marker for marker in markers if x_axis.low <= marker.x <= x_axis.high]
    drawn = [
        *(_marker(marker, x_axis) for marker in inside),
        *(element for line in lines for element in _curve(line, x_axis, y_axis)),
    ]
    below = _legend(lines, inside) + _note(note)
    return _figure(drawn, x_axis, y_axis, names=(title, x_label, y_label), below=below)


def histogram(
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_log: bool = False,
    note: str = "",
) -> str:
    """A ``figure`` with a bar between consecutive ``edges``; empty without finite counts or edges.

    ``y_log`` makes the y axis logarithmic, which omits bars of 0.
    """
    counts = [count if math.isfinite(count) else 0 for count in counts]
    highest = max(counts, default=0)
    if not highest or not all(map(math.isfinite, edges)):
        return ""
    x_axis = Axis(edges[0], edges[-1], ticks(edges[0], edges[-1]))
    if y_log:
        y_axis = Axis(0.5, 1.1 * highest, log_ticks(1.0, 1.1 * highest), is_log=True)
    else:
        enclosing = ticks(0, highest, outside=True)
        y_axis = Axis(0, enclosing[-1], enclosing)
    bars = [
        _bar(low, high, count, x_axis, y_axis)
        for low, high, count in zip(edges, edges[1:], counts)
        if count
    ]
    return _figure(bars, x_axis, y_axis, names=(title, x_label, y_label), below=_note(note))


def _figure(
    drawn: Sequence[str], x_axis: Axis, y_axis: Axis, *, names: tuple[str, str, str], below: str
) -> str:
    """Puts drawn elements on their axes; ``names`` are the title, then the labels of x and y."""
    title, x_label, y_label = map(escape, names)
    drawing = [
        *(_horizontal(y_axis.fraction(value)) for value in y_axis.ticks),
        *(_vertical("tick", x_axis.fraction(value)) for value in x_axis.ticks),
        *drawn,
    ]
    labels = [
        *(_tick("y", "bottom", y_axis.fraction(value), value) for value in y_axis.ticks),
        *(_tick("x", "left", x_axis.fraction(value), value) for value in x_axis.ticks),
        f'<span class="label y">{y_label}</span>',
        f'<span class="label x">{x_label}</span>',
    ]
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>\n<div class="plot">'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}: {y_label} over {x_label}">\n'
        + "\n".join(drawing)
        + "\n</svg>\n"
        + "".join(labels)
        + f"</div>\n{below}</figure>"
    )


def _note(note: str) -> str:
    return f'<p class="note">{escape(note)}</p>' if note else ""


def _x_axis(values: Sequence[float], *, from_zero: bool) -> Axis:
    low, high = min(values), max(values)
    if from_zero and 0 < low <= high / 4:
        low = 0
    low, high = widened(low, high)
    return Axis(low, high, ticks(low, high))


def _y_axis(values: Sequence[float], *, log: bool) -> Axis:
    low, high = widened(min(values), max(values))
    if log and low > 0 and high >= _FAR_APART * low:
        low, high = low / 1.05, high * 1.05
        return Axis(low, high, log_ticks(low, high), is_log=True)
    enclosing = ticks(low, high, outside=True)
    return Axis(enclosing[0], enclosing[-1], enclosing)


def widened(low: float, high: float) -> tuple[float, float]:
    """Widens the interval if its ends are equal."""
    if low < high:
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, *, outside: bool = False, about: int = 5) -> list[float]:
    """Round numbers between ``low`` and ``high``; with ``outside`` they enclose both.

    Their spacing is 1, 2 or 5 times a power of ten, and there are approximately ``about`` of them.
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    slack = 1e-9
    if outside:
        first, last = math.floor(low / step + slack), math.ceil(high / step - slack)
    else:
        first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """A few round numbers between two positive ones, such as 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        found = [
            float(f"{factor}e{power}")
            for power in powers
            for factor in factors
            if low <= float(f"{factor}e{power}") <= high
        ]
        if len(found) <= _MOST_LOG_TICKS:
            break
    return found


def _text(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return text.replace("-", "−")


def _tick(axis: str, side: str, fraction: float, value: float) -> str:
    return f'<span class="tick {axis}" style="{side}:{100 * fraction:.2f}%">{_text(value)}</span>'


def _coordinate(fraction: float) -> str:
    """A coordinate in the units of the drawing."""
    return f"{_SIDE * fraction:.1f}".removesuffix(".0")


def _horizontal(fraction: float) -> str:
    y = _coordinate(1 - fraction)
    return f'<line class="grid" x1="0" x2="{_SIDE}" y1="{y}" y2="{y}"/>'


def _vertical(style: str, fraction: float, name: str = "") -> str:
    x, title = _coordinate(fraction), f"<title>{escape(name)}</title>" if name else ""
    top = _SIDE - 20 if style == "tick" else 0
    return f'<line class="{style}" x1="{x}" x2="{x}" y1="{top}" y2="{_SIDE}">{title}</line>'


def _marker(marker: Marker, axis: Axis) -> str:
    return _vertical(f"marker {marker.style}", axis.fraction(marker.x), marker.name)


def _curve(line: Line, x_axis: Axis, y_axis: Axis) -> list[str]:
    points = [
        (_coordinate(x_axis.fraction(x)), _coordinate(1 - y_axis.fraction(y)))
        for x, y in line.points
    ]
    path = " ".join(f"{x},{y}" for x, y in points)
    elements = [f'<polyline class="curve {line.style}" points="{path}"/>']
    if len(points) <= _MOST_DOTS:
        # A line of zero length with round ends is a circle even if the drawing is stretched.
        elements += [
            f'<path class="dot {line.style}" d="M{x} {y}h.01">'
            f"<title>{escape(line.name)} at {_text(point[0])}: {point[1]:.4g}</title></path>"
            for (x, y), point in zip(points, line.points)
        ]
    return elements


def _bar(low: float, high: float, count: float, x_axis: Axis, y_axis: Axis) -> str:
    left, right = x_axis.fraction(low), x_axis.fraction(high)
    height = y_axis.fraction(count)
    return (
        f'<rect class="first" x="{_coordinate(left)}" width="{_coordinate(right - left)}" '
        f'y="{_coordinate(1 - height)}" height="{_coordinate(height)}">'
        f"<title>{_text(low)} to {_text(high)}: {_text(count)}</title></rect>"
    )


def _legend(lines: Sequence[Line], markers: Sequence[Marker]) -> str:
    entries = [(line.name, f"curve {line.style}") for line in lines]
    entries += [(marker.name, f"marker {marker.style}") for marker in markers]
    items = (
        '<li><svg viewBox="0 0 24 8" aria-hidden="true">'
        f'<line class="{style}" x1="0" x2="24" y1="4" y2="4"/></svg>{escape(name)}</li>'
        for name, style in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'
