"""Line charts as SVG that the page's style sheet colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 12, 46
_MOST_DOTS = 40

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
    """A linear scale from values to the pixels of the drawing."""

    low: float
    high: float
    first_pixel: float
    last_pixel: float

    def pixel(self, value: float) -> float:
        """Where ``value`` is drawn."""
        part = (value - self.low) / (self.high - self.low)
        return round(self.first_pixel + part * (self.last_pixel - self.first_pixel), 1)


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    markers: Sequence[Marker] = (),
    note: str = "",
) -> str:
    """A ``figure`` with the curves, their legend and a caption; empty when there is no point."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    x_values = [x for line in lines for x, _ in line.points]
    y_values = [y for line in lines for _, y in line.points]
    x_low, x_high = widened(min(x_values), max(x_values))
    y_ticks = ticks(*widened(min(y_values), max(y_values)), outside=True)
    x_axis = Axis(x_low, x_high, _LEFT, _WIDTH - _RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    inside = [marker for marker in markers if x_low <= marker.x <= x_high]
    drawing = [
        *_y_grid(y_axis, y_ticks, y_label),
        *_x_grid(x_axis, ticks(x_low, x_high), x_label),
        *(_marker(marker, x_axis) for marker in inside),
        *(part for line in lines for part in _curve(line, x_axis, y_axis)),
    ]
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>\n'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(f"{title}: {y_label} over {x_label}")}">\n'
        + "\n".join(drawing)
        + f"\n</svg>\n{_legend(lines, inside)}"
        + (f'<p class="note">{escape(note)}</p>' if note else "")
        + "</figure>"
    )


def widened(low: float, high: float) -> tuple[float, float]:
    """The interval, made wider where its ends are one."""
    if low < high:
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, *, outside: bool = False, about: int = 5) -> list[float]:
    """Round numbers between ``low`` and ``high``; with ``outside`` they enclose both.

    Neighbours are 1, 2 or 5 times a power of ten apart, which gives ``about`` so many.
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


def _text(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return text.replace("-", "−")


def _y_grid(axis: Axis, values: Sequence[float], label: str) -> list[str]:
    middle = (axis.first_pixel + axis.last_pixel) / 2
    parts = [
        f'<text class="label" transform="translate(14 {middle:g}) rotate(-90)" '
        f'text-anchor="middle">{escape(label)}</text>'
    ]
    for value in values:
        y = axis.pixel(value)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:g}" y2="{y:g}"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4.5:g}" text-anchor="end">{_text(value)}</text>',
        ]
    return parts


def _x_grid(axis: Axis, values: Sequence[float], label: str) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    middle = (axis.first_pixel + axis.last_pixel) / 2
    parts = [
        f'<text class="label" x="{middle:g}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"{escape(label)}</text>"
    ]
    for value in values:
        x = axis.pixel(value)
        parts += [
            f'<line class="tick" x1="{x:g}" x2="{x:g}" y1="{bottom}" y2="{bottom + 5}"/>',
            f'<text x="{x:g}" y="{bottom + 19}" text-anchor="middle">{_text(value)}</text>',
        ]
    return parts


def _marker(marker: Marker, axis: Axis) -> str:
    x = axis.pixel(marker.x)
    return (
        f'<line class="marker {marker.style}" x1="{x:g}" x2="{x:g}" y1="{_TOP}" '
        f'y2="{_HEIGHT - _BOTTOM}"><title>{escape(marker.name)}</title></line>'
    )


def _curve(line: Line, x_axis: Axis, y_axis: Axis) -> list[str]:
    pixels = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in line.points]
    path = " ".join(f"{x:g},{y:g}" for x, y in pixels)
    parts = [f'<polyline class="curve {line.style}" points="{path}"/>']
    if len(pixels) <= _MOST_DOTS:
        parts += [
            f'<circle class="dot {line.style}" cx="{x:g}" cy="{y:g}" r="3.5">'
            f"<title>{escape(line.name)} at {_text(point[0])}: {point[1]:.4g}</title></circle>"
            for (x, y), point in zip(pixels, line.points)
        ]
    return parts


def _legend(lines: Sequence[Line], markers: Sequence[Marker]) -> str:
    entries = [(line.name, f"curve {line.style}") for line in lines]
    entries += [(marker.name, f"marker {marker.style}") for marker in markers]
    items = (
        '<li><svg viewBox="0 0 24 8" aria-hidden="true">'
        f'<line class="{style}" x1="0" x2="24" y1="4" y2="4"/></svg>{escape(name)}</li>'
        for name, style in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'
