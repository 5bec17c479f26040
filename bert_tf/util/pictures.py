"""Pictures drawn with matplotlib, an optional dependency."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_tf.util.files import atomic_open

# Colours that colour-blind readers can distinguish (Okabe and Ito, 2002).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#332288")

_DOTS_PER_INCH = 120


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextlib.contextmanager
def panels(
    path: Path, *, inches: tuple[float, float], layout: str = "tight", **subplots: Any
) -> Iterator[Any]:
    """Yields axes, which are written to ``path`` at the end of the block.

    Text in an SVG stays text, and the same picture gives the same file. The suffix of ``path`` is a
    format that matplotlib knows; ``inches`` are width and height, ``layout`` is its layout engine,
    and ``subplots`` are arguments of its ``subplots``.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kind = path.suffix[1:]
    dated = {"metadata": {"Date": None}} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bert_tf"}):
        figure, axes = pyplot.subplots(figsize=inches, layout=layout, **subplots)
        try:
            yield axes
            with atomic_open(path, "wb") as file:
                figure.savefig(file, format=kind, dpi=_DOTS_PER_INCH, **dated)
        finally:
            pyplot.close(figure)


@contextlib.contextmanager
def picture(
    path: Path, *, x: str, y: str, inches: tuple[float, float], layout: str = "tight"
) -> Iterator[Any]:
    """Yields the axes of a picture, which is then written like those of :func:`panels`.

    ``x`` and ``y`` label the axes.
    """
    with panels(path, inches=inches, layout=layout) as axes:
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        yield axes
