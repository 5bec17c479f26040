"""Held-out loss over time: when a loss is reached, ratios of times, tables and pictures."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.util.files import atomic_open

_COLOURS = [f"C{number}" for number in range(10)]


class Curve(NamedTuple):
    """A training as seen at its checkpoints.

    Attributes:
      updates: number of updates at each checkpoint.
      seconds: training time up to each, without start-up, checkpoints and evaluations.
      losses: held-out masked-LM loss at each, in nats.
      processor_seconds: CPU time of the whole process, including start-up and checkpoints.
      start_seconds: time to the end of the first update.
    """

    updates: tuple[int, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    processor_seconds: float
    start_seconds: float

    @property
    def end(self) -> float:
        """The final loss of the training."""
        return self.losses[-1]

    def seconds_to(self, loss: float) -> float | None:
        """Time to the first checkpoint with at most ``loss``; None if there is none."""
        reached = (s for s, found in zip(self.seconds, self.losses) if found <= loss)
        return next(reached, None)


class Comparison(NamedTuple):
    """Ours compared with a peer with the same seed.

    Attributes:
      loss: the peer's final loss.
      peer_seconds: time of the peer's whole training.
      our_seconds: time to our first checkpoint with at most this loss; None if there is none.
    """

    loss: float
    peer_seconds: float
    our_seconds: float | None

    @property
    def share(self) -> float:
        """Our time as a fraction of the peer's; infinite if the loss is not reached."""
        return float("inf") if self.our_seconds is None else self.our_seconds / self.peer_seconds


def compare(ours: Mapping[int, Curve], peer: Mapping[int, Curve]) -> dict[int, Comparison]:
    """Compares seed by seed, for seeds that both have."""
    return {
        seed: Comparison(peer[seed].end, peer[seed].seconds[-1], curve.seconds_to(peer[seed].end))
        for seed, curve in ours.items()
        if seed in peer
    }


def best_peer(peers: Mapping[str, Mapping[int, Curve]]) -> str | None:
    """The peer with the lowest median final loss; None without peers."""
    ends = {
        name: statistics.median(c.end for c in curves.values()) for name, curves in peers.items()
    }
    return min(ends, key=ends.__getitem__, default=None)


def table(curves: Mapping[str, Mapping[int, Curve]]) -> list[str]:
    """A line for each contender: medians over its seeds."""
    width = max(map(len, curves), default=0)
    heads = ("seeds", "updates", "seconds", "processor", "start-up", "loss at end", "of seeds")
    lines = [" " * width + "".join(f"{head:>13}" for head in heads)]
    for name, of_seeds in curves.items():
        runs = list(of_seeds.values())
        ends = [run.end for run in runs]
        cells = [
            f"{len(runs)}",
            f"{statistics.median(run.updates[-1] for run in runs):.0f}",
            f"{statistics.median(run.seconds[-1] for run in runs):.1f}",
            f"{statistics.median(run.processor_seconds for run in runs):.1f}",
            f"{statistics.median(run.start_seconds for run in runs):.1f}",
            f"{statistics.median(ends):.4f}",
        ]
        spread = f"  {min(ends):.4f} to {max(ends):.4f}"
        lines.append(f"{name:{width}}" + "".join(f"{cell:>13}" for cell in cells) + spread)
    return lines


def draw(curves: Mapping[str, Mapping[int, Curve]], *, path: Path, title: str) -> None:
    """Writes an SVG of held-out loss over time, with one colour per contender."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same curves give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "time_to_loss"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for (name, of_seeds), colour in zip(curves.items(), itertools.cycle(_COLOURS)):
        for label, curve in _labelled(name, of_seeds.values()):
            axes.plot(
                curve.seconds, curve.losses, label=label, color=colour, linewidth=1.2, marker="."
            )
            axes.axhline(curve.end, color=colour, linewidth=0.4, linestyle=":")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("held-out loss of masked words (nats)")
    axes.legend(fontsize=8)
    axes.grid(color="0.9")
    with atomic_open(path, "wb") as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _labelled(name: str, curves: Iterable[Curve]) -> Iterable[tuple[str | None, Curve]]:
    """A contender's curves; only the first has an entry in the legend."""
    return zip(itertools.chain([name], itertools.repeat(None)), curves)


def checkpoint_losses(
    evaluated: Sequence[Mapping[str, object]],
) -> dict[int, float]:
    """Loss by update, from the checkpoints in perplexity.json."""
    return {int(row["step"]): float(row["masked"]["nats_per_token"]) for row in evaluated}
