"""Draws the pictures of the documentation, which are stored next to their pages.

    python -m tools.pictures

Rates and masks come from the toolkit's own functions, and measured values from the tables of their
pages. Screenshots are taken by ``python -m tools.pictures.screens``.
"""

from __future__ import annotations

from pathlib import Path

from tools.pictures import charts, diagrams
from tools.pictures.svg import Drawing

DOCS = Path(__file__).resolve().parents[2] / "docs"


def drawings() -> dict[str, Drawing]:
    """All drawings, by their path in docs."""
    memory_page = (DOCS / "measurements/memory.md").read_text(encoding="utf-8")
    return {
        "start/data_flow.svg": diagrams.data_flow(),
        "howto/masks.svg": diagrams.masks(),
        "howto/schedules.svg": charts.schedules(),
        "why/global_batch.svg": diagrams.global_batch(),
        "why/update.svg": diagrams.update(),
        "measurements/memory.svg": charts.memory(memory_page),
    }


if __name__ == "__main__":
    for name, drawing in drawings().items():
        drawing.write(DOCS / name)
