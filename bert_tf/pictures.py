"""Pictures drawn with matplotlib, which need not be installed."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_tf.files import atomic_open

_DOTS_PER_INCH = 120


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextlib.contextmanager
def picture(
    path: Path, *, x: str, y: str, inches: tuple[float, float], layout: str = "tight"
) -> Iterator[Any]:
    """Yields the axes of a picture, which is written to ``path`` at the end of the block.

    Args:
      path: its suffix is a format that matplotlib knows.
      x, y: what the axes show.
      inches: width and height.
      layout: matplotlib's layout engine.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=inches, layout=layout)
    try:
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        yield axes
        with atomic_open(path, "wb") as file:
            figure.savefig(file, format=path.suffix[1:], dpi=_DOTS_PER_INCH)
    finally:
        pyplot.close(figure)
