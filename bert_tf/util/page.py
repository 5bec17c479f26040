"""The page of a report: one self-contained HTML file with sections, and examples to browse.

Whoever reports gives data: names and values, tables, curves and bars, examples. Charts are SVG
drawings stretched to their cards, with HTML labels, which are not stretched. A script, on pages
with examples alone, filters and orders these. All texts are escaped here.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple, Union
from urllib.parse import urlencode

from bert_tf.util.files import PathLike, atomic_open, finite_or_null

_FILES = Path(__file__).with_name("page_files")
# "<" could end the script element; the two line separators end a line in old JavaScript.
_SCRIPT_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

_SIDE = 1000  # width and height of a drawing in its units
_MOST_DOTS = 40
_MOST_LOG_TICKS = 8
_FAR_APART = 3  # from this ratio on, a curve leaves most of a linear axis empty
_STYLES = ("first", "second", "third")  # the style sheet's classes of lines

Point = tuple[float, float]


class Table(NamedTuple):
    """A table whose rows begin with their names.

    Attributes:
      caption, columns, rows: its content.
      filter_name: the filter of the page's examples that the names select; "" for none.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    filter_name: str = ""

    def html(self) -> str:
        """The table as HTML."""
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        rows = "".join(map(self._row, self.rows))
        return (
            f'<div class="card"><table><caption>{escape(self.caption)}</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _row(self, cells: Sequence[str]) -> str:
        name, *values = map(escape, cells)
        if self.filter_name:
            query = urlencode({self.filter_name: cells[0]})
            name = f'<a href="#{escape(query)}">{name}</a>'
        columns = "".join(f"<td>{value}</td>" for value in values)
        return f'<tr><th scope="row">{name}</th>{columns}</tr>'


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


def axis_of(values: Sequence[float], *, log: bool = False) -> Axis:
    """An axis around the values; with ``log`` a logarithmic one if they are positive and apart."""
    low, high = min(values), max(values)
    if log and 0 < low <= high / _FAR_APART:
        return Axis(low / 1.05, high * 1.05, _log_ticks(low, high), True)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    # About six numbers around both, spaced by 1, 2 or 5 times a power of ten.
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    slack = 1e-9
    first, last = math.floor(low / step + slack), math.ceil(high / step - slack)
    digits = max(0, 2 - math.floor(math.log10(step)))
    ticks = [round(index * step, digits) for index in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks)


def _log_ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 2 and 5 times powers of ten between two; powers alone if these are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    many = len(ticks) > _MOST_LOG_TICKS
    return [tick for tick in ticks if f"{tick:e}".startswith("1.")] if many else ticks


@dataclasses.dataclass(frozen=True)
class Chart:
    """Numbers over an x axis, as curves or as bars; without any finite one, nothing is shown.

    Attributes:
      title, x_label, y_label: its texts.
      lines: name -> points, of at most three curves.
      edges, counts: instead of curves, bars: number i stands between two consecutive edges.
      markers: (name, x) of at most three vertical lines; those beyond the curves are left out.
      y_log: whether the y axis is logarithmic: of curves, if all values are positive and far apart;
        of bars, those of 0 are left out.
      note: a sentence below.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[Point]] = dataclasses.field(default_factory=dict)
    edges: Sequence[float] = ()
    counts: Sequence[float] = ()
    markers: Sequence[tuple[str, float]] = ()
    y_log: bool = False
    note: str = ""

    def html(self) -> str:
        """The chart as a ``figure``; empty if nothing is shown."""
        return self._bars() if self.counts else self._curves()

    def _curves(self) -> str:
        lines = {
            name: [point for point in points if all(map(math.isfinite, point))]
            for name, points in self.lines.items()
        }
        points = [point for of_line in lines.values() for point in of_line]
        if not points:
            return ""
        x_axis = axis_of([x for x, _ in points])
        y_axis = axis_of([y for _, y in points], log=self.y_log)
        drawn, legend = [], []
        for style, name in zip(_STYLES, filter(lines.get, lines)):
            drawn += _curve(name, lines[name], style, x_axis, y_axis)
            legend.append(f'<li class="curve {style}">{escape(name)}</li>')
        for style, (name, x) in zip(_STYLES, self.markers):
            if x_axis.low <= x <= x_axis.high:
                drawn.append(_vertical(f"marker {style}", x_axis.fraction(x)))
                legend.append(f'<li class="marker {style}">{escape(name)}</li>')
        below = f'<ul class="legend">{"".join(legend)}</ul>'
        if self.note:
            below += f'<p class="note">{escape(self.note)}</p>'
        return self._figure(drawn, x_axis, y_axis, below)

    def _bars(self) -> str:
        counts = [count if math.isfinite(count) else 0 for count in self.counts]
        highest = max(counts)
        if not highest or not all(map(math.isfinite, self.edges)):
            return ""
        x_axis, y_axis = axis_of(self.edges), axis_of([0, highest])
        if self.y_log:
            y_axis = Axis(0.5, 1.1 * highest, _log_ticks(1, highest), True)
        bars = [
            _bar(low, high, count, x_axis, y_axis)
            for low, high, count in zip(self.edges, self.edges[1:], counts)
            if count
        ]
        return self._figure(bars, x_axis, y_axis, "")

    def _figure(self, drawn: Sequence[str], x: Axis, y: Axis, below: str) -> str:
        """Puts drawn elements on their axes."""
        title, x_label, y_label = map(escape, (self.title, self.x_label, self.y_label))
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


def _curve(name: str, points: Sequence[Point], style: str, x_axis: Axis, y_axis: Axis) -> list[str]:
    places = [(_units(x_axis.fraction(x)), _units(1 - y_axis.fraction(y))) for x, y in points]
    path = " ".join(f"{x},{y}" for x, y in places)
    elements = [f'<polyline class="curve {style}" points="{path}"/>']
    if len(places) <= _MOST_DOTS:
        # A line of zero length with round ends is a circle even if the drawing is stretched.
        elements += [
            f'<path class="dot {style}" d="M{x} {y}h.01">'
            f"<title>{escape(name)} at {_text(point[0])}: {point[1]:.4g}</title></path>"
            for (x, y), point in zip(places, points)
        ]
    return elements


def _bar(low: float, high: float, count: float, x_axis: Axis, y_axis: Axis) -> str:
    left, right, height = x_axis.fraction(low), x_axis.fraction(high), y_axis.fraction(count)
    return (
        f'<rect class="first" x="{_units(left)}" width="{_units(right - left)}" '
        f'y="{_units(1 - height)}" height="{_units(height)}">'
        f"<title>{_text(low)} to {_text(high)}: {_text(count)}</title></rect>"
    )


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page; empty attributes are omitted.

    Attributes:
      heading: its heading.
      scores: names and values in large type.
      details: further names and values.
      sentences: a list.
      charts, tables: side by side.
      legend: HTML that explains the marks of the cards, shown before them.
      cards: HTML of paragraphs whose whitespace is preserved.
    """

    heading: str
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    legend: Sequence[str] = ()
    cards: Sequence[str] = ()

    def html(self) -> str:
        """The section as HTML."""
        tiles = (
            f'<div class="tile"><span>{escape(name)}</span><strong>{escape(value)}</strong></div>'
            for name, value in self.scores.items()
        )
        details = (
            f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
            for name, value in self.details.items()
        )
        charts, tables = (part.html() for part in self.charts), (t.html() for t in self.tables)
        sentences = (f"<li>{escape(text)}</li>" for text in self.sentences)
        legend = (f"<li>{item}</li>" for item in self.legend)
        cards = (
            f'<div class="card"><p class="context" dir="auto">{card}</p></div>\n'
            for card in self.cards
        )
        return (
            f"<section><h2>{escape(self.heading)}</h2>\n"
            + _wrapped('<div class="tiles">', tiles, "</div>\n")
            + _wrapped('<dl class="details">', details, "</dl>\n")
            + _wrapped("<ul>", sentences, "</ul>\n")
            + _wrapped('<div class="columns">', [*charts, *tables], "</div>\n")
            + _wrapped('<ul class="legend">', legend, "</ul>\n")
            + "".join(cards)
            + "</section>\n"
        )


@dataclasses.dataclass(frozen=True)
class Example:
    """A text with marked parts, that the reader can find by filters and order.

    Attributes:
      text: it; many examples may have the same.
      marks: "true" or "predicted" -> the parts of the text that are, [start, end) in characters.
      answers: "true", "predicted" or another name -> the answers; none is "no answer".
      facts: shown in one line.
      filters: name of a filter -> value of this example.
      orders: name of an order -> key, lowest first.
      candidates: other answers with their probability, best first; None is not a number.
    """

    id: str
    heading: str
    text: str
    marks: Mapping[str, Sequence[tuple[int, int]]]
    answers: Mapping[str, Sequence[str]]
    facts: Sequence[str]
    filters: Mapping[str, str]
    orders: Mapping[str, float] = dataclasses.field(default_factory=dict)
    candidates: Sequence[tuple[str, float | None]] = ()


MIXED = "mixed"  # an order in which every page of examples has some of all


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a page, at least one, all with the same filters and orders.

    Attributes:
      heading: the heading of their section, such as "Questions".
      examples: the examples.
      orders: the names of orders to choose from, the default first: ``MIXED``, those that examples
        have keys for, and a name for the order in which they are given.
    """

    heading: str
    examples: Sequence[Example]
    orders: Sequence[str]

    def html(self) -> str:
        """The controls, and the examples as data for the page's script."""
        texts: dict[str, int] = {}
        rows = [
            {**dataclasses.asdict(one), "text": texts.setdefault(one.text, len(texts))}
            for one in self.examples
        ]
        names = map(escape, self.orders)
        orders = (f'<option value="{name}">{name}</option>' for name in names)
        data = finite_or_null({"texts": list(texts), "rows": rows})
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Template(_read("examples.html")).substitute(
            heading=escape(self.heading),
            orders="".join(orders),
            data=text.translate(_SCRIPT_ESCAPES),
        )


Part = Union[Section, Examples]


def write_page(path: PathLike, title: str, parts: Sequence[Part]) -> None:
    """Writes the page, atomically; it loads nothing, and no script but its own can run."""
    policy = script = ""
    if any(isinstance(part, Examples) for part in parts):
        content = _read("examples.js")
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy, script = f"; script-src 'sha256-{digest}'", f"<script>{content}</script>"
    page = Template(_read("frame.html")).substitute(
        title=escape(title),
        style=_read("page.css"),
        script_policy=policy,
        main="".join(part.html() for part in parts),
        script=script,
    )
    with atomic_open(path, "wb") as file:
        # UTF-8 lacks lone surrogates, which JSON may contain; "?" keeps later offsets right.
        file.write(page.encode("utf-8", errors="replace"))


def mark(text: str, style: str) -> str:
    """HTML of a text of a card with a mark of the style sheet, such as "hidden"."""
    return f'<mark class="{style}">{escape(text)}</mark>'


def _read(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _wrapped(before: str, parts: Iterable[str], after: str) -> str:
    """The parts between two tags; nothing without any."""
    inside = "".join(parts)
    return f"{before}{inside}{after}" if inside else ""
