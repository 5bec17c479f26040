"""The page of a report: one self-contained HTML file with sections, and examples to browse.

Sections have key figures, names and values, charts and tables; a script, on pages with examples
alone, filters and orders these. All texts are escaped here, but for the HTML that other functions
of this package return.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple, Union
from urllib.parse import urlencode

from bert_tf.util.files import PathLike, atomic_open, finite_or_null

_FILES = Path(__file__).parent
# "<" could end the script element; the two line separators end a line in old JavaScript.
_SCRIPT_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


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


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page; empty attributes are omitted.

    Attributes:
      figures: names and values in large type.
      details: further names and values.
      charts: HTML from ``charts``.
      legend: HTML that explains the marks of the cards, shown before them.
      cards: HTML of paragraphs whose whitespace is preserved.
    """

    heading: str
    figures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)
    sentences: Sequence[str] = ()
    charts: Sequence[str] = ()
    tables: Sequence[Table] = ()
    legend: Sequence[str] = ()
    cards: Sequence[str] = ()

    def html(self) -> str:
        """The section as HTML."""
        tiles = (
            f'<div class="tile"><span>{escape(name)}</span><strong>{escape(value)}</strong></div>'
            for name, value in self.figures.items()
        )
        details = (
            f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
            for name, value in self.details.items()
        )
        columns = "".join([*self.charts, *(table.html() for table in self.tables)])
        return (
            f"<section><h2>{escape(self.heading)}</h2>\n"
            + _wrapped('<div class="tiles">', tiles, "</div>\n")
            + _wrapped('<dl class="details">', details, "</dl>\n")
            + _wrapped("<ul>", (f"<li>{escape(text)}</li>" for text in self.sentences), "</ul>\n")
            + _wrapped('<div class="columns">', columns, "</div>\n")
            + _wrapped(
                '<ul class="legend">', (f"<li>{item}</li>" for item in self.legend), "</ul>\n"
            )
            + "".join(
                f'<div class="card"><p class="context" dir="auto">{card}</p></div>\n'
                for card in self.cards
            )
            + "</section>\n"
        )


@dataclasses.dataclass(frozen=True)
class Example:
    """A text with marked parts, that the reader can find by filters and order.

    Attributes:
      text: it; many examples may have the same.
      marks: "true" or "predicted" -> the parts of the text that are, [start, end) in characters.
      answers: "true" or "predicted" -> the answers; none is "no answer".
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
    orders: Mapping[str, float]
    candidates: Sequence[tuple[str, float | None]] = ()


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a page, at least one, all with the same filters and orders.

    Attributes:
      heading: the heading of their section, such as "Questions".
      examples: the examples, in the order of their file.
    """

    heading: str
    examples: Sequence[Example]

    def html(self) -> str:
        """The controls, and the examples as data for the page's script."""
        texts: dict[str, int] = {}
        rows = [
            {**dataclasses.asdict(one), "text": texts.setdefault(one.text, len(texts))}
            for one in self.examples
        ]
        names = map(escape, self.examples[0].orders)
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


def mark(text: str, *styles: str) -> str:
    """HTML of a text with marks of the style sheet, such as "true" and "predicted"."""
    return f'<mark class="{" ".join(styles)}">{escape(text)}</mark>' if styles else escape(text)


def badge(text: str, style: str) -> str:
    """HTML of a short verdict; ``style`` is "exact", "partly" or "wrong"."""
    return f'<span class="badge {style}">{escape(text)}</span>'


def hint(text: str) -> str:
    """HTML of a quiet line before the text of a card."""
    return f'<span class="hint">{escape(text)}</span><br>'


def _read(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _wrapped(before: str, parts: Iterable[str], after: str) -> str:
    """The parts between two tags; nothing without any."""
    inside = "".join(parts)
    return f"{before}{inside}{after}" if inside else ""
