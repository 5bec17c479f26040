"""Tables and lists of names and values in HTML; all inserted text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def details_list(details: Mapping[str, object]) -> str:
    """Names and values as a definition list."""
    pairs = (
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in details.items()
    )
    return f'<dl class="details">{"".join(pairs)}</dl>' if details else ""


def plain_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first cell of each row is its name."""
    return table(caption, columns, [table_row(name, cells) for name, *cells in rows])


def table_row(name: str, cells: Iterable[str]) -> str:
    """A table row headed by ``name``."""
    values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{values}</tr>'


def table(
    caption: str, columns: Sequence[str], rows: Sequence[str], *, foot: Sequence[str] = ()
) -> str:
    """A table of rows from :func:`table_row`, and further rows in its footer."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="card"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
        f"<tfoot>{''.join(foot)}</tfoot></table></div>"
    )
