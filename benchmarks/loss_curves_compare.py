"""Decides whether loss curves differ by more than those of two seeds, and draws them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.pictures import COLOURS, panels


class Curve(NamedTuple):
    """The training loss of a run, and its held-out loss.

    Attributes:
      steps: number of updates done, evenly spaced.
      losses: training loss in nats, at each of ``steps`` the mean since the previous one. Infinite
        where the loss was not finite.
      held_out: loss on the held-out records after the last update.
    """

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    held_out: float


class Difference(NamedTuple):
    """How far two curves are apart, in nats.

    Attributes:
      mean, largest: mean and maximum of the absolute differences of the smoothed training losses.
      held_out: absolute difference of the final held-out losses.
    """

    mean: float
    largest: float
    held_out: float


def smooth(curve: Curve, window_steps: int) -> Curve:
    """Means over the last ``window_steps`` updates, from the first step that has that many.

    Raises UserError as :func:`points_of_window` does.
    """
    points = points_of_window(window_steps, spacing=curve.steps[0], last_step=curve.steps[-1])
    windows = np.lib.stride_tricks.sliding_window_view(np.array(curve.losses), points)
    means = windows.mean(axis=1).tolist()
    return Curve(curve.steps[points - 1 :], tuple(means), curve.held_out)


def points_of_window(window_steps: int, *, spacing: int, last_step: int) -> int:
    """The number of points, ``spacing`` updates apart, averaged in a window of ``window_steps``.

    Raises UserError if the window is not a multiple of the spacing or is longer than the curve.
    """
    points, rest = divmod(window_steps, spacing)
    if rest or not spacing <= window_steps <= last_step:
        raise UserError(
            f"--smoothing_steps={window_steps}: give a multiple of {spacing}, the updates between "
            f"two lines of the log, up to {last_step}."
        )
    return points


def difference(one: Curve, other: Curve) -> Difference:
    """How far two smoothed curves are apart; infinite where one is not a number."""
    apart = np.abs(deviations(one, other))
    return Difference(
        float(apart.mean()), float(apart.max()), abs(_gap(one.held_out, other.held_out))
    )


def deviations(curve: Curve, reference: Curve) -> list[float]:
    """The training loss minus the reference's, at each step; infinite where it is not finite.

    Raises UserError if the curves have different steps.
    """
    if curve.steps != reference.steps:
        raise UserError(
            f"two runs logged different steps ({len(curve.steps)} lines to {curve.steps[-1]}, "
            f"{len(reference.steps)} to {reference.steps[-1]}); remove both directories and start "
            "again."
        )
    return [_gap(a, b) for a, b in zip(curve.losses, reference.losses)]


def between_seeds(curves: Sequence[Curve]) -> Difference:
    """The maximum of each difference over all pairs of runs that differ only in the seed."""
    pairs = [difference(a, b) for a, b in itertools.combinations(curves, 2)]
    return Difference(*(max(values) for values in zip(*pairs)))


def excess(found: Difference, seeds: Difference) -> list[str]:
    """Which parts of a difference exceed that of two seeds; empty if none does."""
    return [name for name in Difference._fields if not getattr(found, name) <= getattr(seeds, name)]


def _gap(value: float, reference: float) -> float:
    gap = value - reference
    return gap if np.isfinite(gap) else float("inf")


def draw(
    reference: Curve,
    seeds: Mapping[str, Curve],
    variants: Mapping[str, Curve],
    *,
    path: Path,
    title: str,
) -> None:
    """Writes an SVG of smoothed curves, with their distances from the reference below.

    Args:
      reference: black in the upper panel, the zero line in the lower one.
      seeds: the reference's other seeds, by name; grey.
      variants: coloured.
      path: the file.
      title: what was trained.
    """
    styles = [(name, curve, "0.6", 1) for name, curve in seeds.items()]
    colours = itertools.cycle(COLOURS)
    styles += [
        (name, curve, colour, 1.2) for (name, curve), colour in zip(variants.items(), colours)
    ]
    ys = ("training loss, smoothed (nats)", "above fp32 (nats)")
    heights = {"nrows": 2, "sharex": True, "height_ratios": [2, 1]}
    with panels(path, inches=(8, 7), layout="constrained", **heights) as (above, below):
        for axes, y in zip((above, below), ys):
            axes.set_ylabel(y)
        below.set_xlabel("updates")
        above.plot(reference.steps, reference.losses, color="black", linewidth=2, label="fp32")
        below.axhline(0, color="black", linewidth=1)
        for name, curve, colour, width in styles:
            above.plot(curve.steps, curve.losses, label=name, color=colour, linewidth=width)
            below.plot(curve.steps, deviations(curve, reference), color=colour, linewidth=width)
        above.set_title(title, fontsize=10)
        above.legend(fontsize=8)
        for axes in (above, below):
            axes.grid(color="0.9")
