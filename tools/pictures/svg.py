"""SVG drawings: a few shapes, on a light or dark card depending on the reader's system.

Coordinates are pixels from the upper left corner. The same drawing always gives the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

Point = tuple[float, float]

# Colours that colour-blind readers can distinguish (after Okabe and Ito, 2002), by class. A fill
# and a line of one class belong together; text on any of the fills has the class "ink".
_LIGHT = {
    "card": "#ffffff",
    "ink": "#1c2733",
    "soft": "#566474",
    "plain": "#eef2f6",
    "blue": "#cfe4f5",
    "orange": "#fbdcb6",
    "green": "#c9ebdd",
    "pink": "#f3d5e5",
    "yellow": "#f7edb0",
}
_DARK = {
    "card": "#181b20",
    "ink": "#e6eaef",
    "soft": "#a3afbc",
    "plain": "#2a313a",
    "blue": "#1d4a6e",
    "orange": "#75480f",
    "green": "#14563f",
    "pink": "#682f4f",
    "yellow": "#5f5511",
}
_LIGHT_LINES = {
    "blue": "#0072b2",
    "orange": "#c45500",
    "green": "#007a59",
    "pink": "#b0518a",
    "yellow": "#8a7400",
    "soft": "#566474",
    "grid": "#dde3e9",
}
_DARK_LINES = {
    "blue": "#5cb3ee",
    "orange": "#f39a4a",
    "green": "#3cc79c",
    "pink": "#e293c1",
    "yellow": "#d9c63f",
    "soft": "#a3afbc",
    "grid": "#343c46",
}


def _rules(fills: dict[str, str], lines: dict[str, str]) -> str:
    filled = "".join(f".{name}{{fill:{colour}}}" for name, colour in fills.items())
    drawn = "".join(f".{name}-line{{stroke:{colour}}}" for name, colour in lines.items())
    return filled + drawn + f".head{{fill:{lines['soft']}}}"


_STYLE = (
    "text{font-family:system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}"
    ".code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".curve,.arrow,.edge{fill:none}.dashed{stroke-dasharray:5 4}.strong{font-weight:600}"
    f"{_rules(_LIGHT, _LIGHT_LINES)}"
    f"@media(prefers-color-scheme:dark){{{_rules(_DARK, _DARK_LINES)}}}"
)


class Drawing:
    """A drawing to which shapes are added, each on top of the earlier ones.

    Args:
      width, height: in pixels, at which text has its natural size.
      title: the description for screen readers.
    """

    def __init__(self, width: int, height: int, title: str):
        self._size = (width, height)
        self._title = title
        self._shapes: list[str] = []

    def rectangle(
        self,
        corner: Point,
        size: Point,
        style: str = "plain",
        *,
        edge: str = "soft",
        dash: bool = False,
    ) -> None:
        """A rounded rectangle; ``edge`` is the class of its outline, empty for none."""
        line = f" {edge}-line" if edge else ""
        self._shapes.append(
            f'<rect class="{style}{line}{" dashed" if dash else ""}" x="{_n(corner[0])}" '
            f'y="{_n(corner[1])}" width="{_n(size[0])}" height="{_n(size[1])}" rx="5"/>'
        )

    def text(
        self, at: Point, text: str, style: str = "ink", *, size: float = 13, anchor: str = "middle"
    ) -> None:
        """A line of text; ``at`` is the middle, start or end of its baseline, by ``anchor``."""
        self._shapes.append(
            f'<text class="{style}" x="{_n(at[0])}" y="{_n(at[1])}" font-size="{_n(size)}" '
            f'text-anchor="{anchor}">{escape(text, quote=False)}</text>'
        )

    def box(self, corner: Point, size: Point, lines: Sequence[str], style: str = "plain") -> None:
        """A rectangle with centred lines of text, the first one larger than the others."""
        self.rectangle(corner, size, style)
        middle = corner[0] + size[0] / 2
        first = corner[1] + size[1] / 2 + 5 - 8 * (len(lines) - 1)
        for index, line in enumerate(lines):
            self.text((middle, first + 16 * index), line, size=13 if index == 0 else 11)

    def line(
        self,
        points: Sequence[Point],
        style: str = "soft",
        *,
        width: float = 1.5,
        dash: bool = False,
    ) -> None:
        """Straight lines from point to point."""
        self._shapes.append(self._path("curve", points, style, width, dash))

    def arrow(self, points: Sequence[Point], *, dash: bool = False) -> None:
        """Straight lines with a head at the last point."""
        path = self._path("arrow", points, "soft", 1.5, dash)
        self._shapes.append(path.replace("/>", ' marker-end="url(#head)"/>'))

    def dot(self, at: Point, style: str) -> None:
        """A point of a chart."""
        self._shapes.append(
            f'<path class="{style}-line" d="M{_n(at[0])} {_n(at[1])}h.01" stroke-width="7" '
            'stroke-linecap="round"/>'
        )

    @staticmethod
    def _path(kind: str, points: Sequence[Point], style: str, width: float, dash: bool) -> str:
        way = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        dashed = " dashed" if dash else ""
        return f'<path class="{kind} {style}-line{dashed}" d="M{way}" stroke-width="{_n(width)}"/>'

    def write(self, path: Path) -> None:
        """Writes the drawing as a self-contained file."""
        path.write_text(self.svg(), encoding="utf-8")

    def svg(self) -> str:
        """The drawing."""
        width, height = self._size
        title = escape(self._title, quote=False)
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img">',
                f"<title>{title}</title>",
                f"<style>{_STYLE}</style>",
                '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                'markerHeight="7" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker>',
                f'<rect class="card" width="{width}" height="{height}" rx="8"/>',
                *self._shapes,
                "</svg>\n",
            )
        )


def _n(number: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")
