"""Totals and rates of a training run or a prediction, for the lines printed at the end.

Start-up is everything before the steady state: building the graph, starting the session, the first
update or batch, and compilation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_PERCENTILES = (50, 90, 95, 99, 100)


class WarmUp:
    """Distinguishes updates that may include compilation from those in the steady state.

    XLA compiles an update when it first runs, and again for every new shape of its batches.
    """

    def __init__(self) -> None:
        """Has seen no update."""
        self._seconds: dict[tuple[int, ...], float] = {}

    def note(self, shape: Sequence[int], seconds: float) -> bool:
        """Records an update on a batch of ``shape``; returns whether it is in the steady state."""
        is_steady = tuple(shape) in self._seconds
        self._seconds.setdefault(tuple(shape), seconds)
        return is_steady

    @property
    def shapes(self) -> int:
        """The number of distinct shapes so far."""
        return len(self._seconds)

    @property
    def warm_up_seconds(self) -> float:
        """The duration of the first update of each shape, in total."""
        return sum(self._seconds.values())


@dataclasses.dataclass
class UpdateTimes:
    """Times of the updates of a training run since its last start, skipped ones included.

    Attributes:
      updates, sequences: number of updates, and of their sequences over all ranks.
      skipped_updates: number of updates that were skipped because a gradient was not finite.
      steady_sequences: number of sequences in updates after warm-up.
      steady_seconds: duration of these updates, excluding checkpoints and evaluations.
    """

    updates: int = 0
    sequences: int = 0
    skipped_updates: int = 0
    steady_sequences: int = 0
    steady_seconds: float = 0.0

    def note(
        self, seconds: float, *, sequences: int, is_steady: bool, is_skipped: bool = False
    ) -> None:
        """Counts an update."""
        self.updates += 1
        self.sequences += sequences
        self.skipped_updates += is_skipped
        if is_steady:
            self.steady_sequences += sequences
            self.steady_seconds += seconds


@dataclasses.dataclass
class Rates:
    """The work of some updates, and how long it took.

    Attributes:
      sequences: number of sequences in all updates.
      work: the sum of their lengths; the number of sequences if lengths are unknown.
      seconds: the duration of the updates.
    """

    sequences: int = 0
    work: int = 0
    seconds: float = 0.0

    def note(self, seconds: float, sequences: int, length: int) -> None:
        """Adds an update."""
        self.sequences += sequences
        self.work += sequences * length
        self.seconds += seconds


def training_totals(
    times: UpdateTimes,
    *,
    seconds: float,
    has_loss_scale: bool = False,
    peak_gpu_bytes: int | None = None,
) -> dict[str, float]:
    """The totals of ``seconds`` of training over all ranks, for ``run.json``.

    With a loss scale, or if updates were skipped, their number is included.
    ``peak_gpu_bytes`` is the most memory used on rank 0's GPU; None without GPUs.
    """
    totals = {
        "sequences": times.sequences,
        "seconds": round(seconds, 3),
        "sequences_per_second_with_start_up": times.sequences / seconds,
    }
    if has_loss_scale or times.skipped_updates:
        totals["updates"] = times.updates
        totals["skipped_updates"] = times.skipped_updates
    if times.steady_sequences:
        totals["steady_sequences"] = times.steady_sequences
        totals["steady_seconds"] = round(times.steady_seconds, 3)
        totals["sequences_per_second"] = times.steady_sequences / times.steady_seconds
    if peak_gpu_bytes is not None:
        totals["peak_gpu_memory_bytes"] = peak_gpu_bytes
    return totals


def training_lines(totals: dict[str, float]) -> list[str]:
    """The lines that describe :func:`training_totals`."""
    lines = [
        f"training took {totals['seconds']:.2f} s for {totals['sequences']} sequences: "
        f"{totals['sequences_per_second_with_start_up']:.4g} sequences/s with start-up, "
        "checkpoints and evaluations"
    ]
    if "sequences_per_second" in totals:
        lines.append(
            f"training without them took {totals['steady_seconds']:.2f} s for "
            f"{totals['steady_sequences']} sequences: {totals['sequences_per_second']:.4g} "
            "sequences/s"
        )
    if "peak_gpu_memory_bytes" in totals:
        lines.append(f"peak GPU memory {totals['peak_gpu_memory_bytes'] / (1 << 30):.2f} GiB")
    if "skipped_updates" in totals:
        lines.append(
            f"{totals['skipped_updates']} of {totals['updates']} updates were skipped because a "
            "gradient was not finite"
        )
    return lines


def prediction_lines(
    batch_seconds: Sequence[float], *, seconds: float, sequences: int, steady_sequences: int
) -> list[str]:
    """The lines that describe the totals of a prediction.

    ``batch_seconds`` are one rank's; the first is mostly start-up. Numbers of sequences are over
    all ranks; ``steady_sequences`` leave out each rank's first batch.
    """
    lines = [
        f"prediction took {seconds:.2f} s for {sequences} sequences: {sequences / seconds:.4g} "
        "sequences/s with start-up"
    ]
    steady = batch_seconds[1:]
    if steady:
        total = sum(steady)
        milliseconds = 1e3 * np.percentile(steady, _PERCENTILES)
        shown = ", ".join(f"p{p} {ms:.1f}" for p, ms in zip(_PERCENTILES, milliseconds))
        lines.append(
            f"prediction without it took {total:.2f} s for {steady_sequences} sequences: "
            f"{steady_sequences / total:.4g} sequences/s; ms a batch: {shown}, mean "
            f"{1e3 * total / len(steady):.1f}"
        )
    return lines
