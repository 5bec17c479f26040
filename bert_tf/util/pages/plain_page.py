"""A self-contained HTML page without scripts: headings, figures, lists and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape

from bert_tf.util.files import PathLike
from bert_tf.util.pages.frame import write_framed
from bert_tf.util.pages.tables import details_list, plain_table

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page; empty attributes are omitted.

    Attributes:
      heading: its heading.
      details: names and values.
      sentences: items of a list.
      charts: figures from ``charts``.
      tables: (caption, columns, rows) for each table.
      note: HTML shown before the cards.
      cards: HTML of paragraphs whose whitespace is preserved.
    """

    heading: str
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)
    sentences: Sequence[str] = ()
    charts: Sequence[str] = ()
    tables: Sequence[Table] = ()
    note: str = ""
    cards: Sequence[str] = ()

    def html(self) -> str:
        """The section as HTML; escapes everything except notes and cards."""
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.sentences)
        figures = [*self.charts, *(plain_table(*table) for table in self.tables)]
        paragraphs = (
            f'<div class="card"><p class="context" dir="auto">{card}</p></div>'
            for card in self.cards
        )
        return (
            f"<section><h2>{escape(self.heading)}</h2>\n{details_list(self.details)}"
            + (f"<ul>{items}</ul>\n" if items else "")
            + f'<div class="columns">{"".join(figures)}</div>\n'
            + self.note
            + "".join(paragraphs)
            + "</section>\n"
        )


def write_page(path: PathLike, title: str, sections: Sequence[Section]) -> None:
    """Writes the page, atomically."""
    write_framed(path, title, main="".join(section.html() for section in sections))
