"""What a training or a prediction took all in all, for the lines at its end.

Start-up is all that comes before the steady state: building the graph, starting the session, the
first update or batch, compiling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_PERCENTILES = (50, 90, 95, 99, 100)


@dataclasses.dataclass
class UpdateTimes:
    """The updates of a training since its last start, those that were skipped with them.

    Attributes:
      updates: how many.
      steady_updates: those that are not warm-up.
      steady_seconds: what these took, without checkpoints and evaluations between them.
    """

    updates: int = 0
    steady_updates: int = 0
    steady_seconds: float = 0.0

    def note(self, seconds: float, *, is_steady: bool) -> None:
        """Counts an update."""
        self.updates += 1
        if is_steady:
            self.steady_updates += 1
            self.steady_seconds += seconds


def training_facts(
    times: UpdateTimes, *, seconds: float, global_batch_size: int
) -> dict[str, float]:
    """The totals of a training of ``seconds`` over all ranks, for ``run.json``."""
    sequences = times.updates * global_batch_size
    facts = {
        "sequences": sequences,
        "seconds": round(seconds, 3),
        "sequences_per_second_with_start_up": sequences / seconds,
    }
    if times.steady_updates:
        steady = times.steady_updates * global_batch_size
        facts["steady_sequences"] = steady
        facts["steady_seconds"] = round(times.steady_seconds, 3)
        facts["sequences_per_second"] = steady / times.steady_seconds
    return facts


def training_lines(facts: dict[str, float]) -> list[str]:
    """What :func:`training_facts` found, in words."""
    lines = [
        f"training took {facts['seconds']:.2f} s for {facts['sequences']} sequences: "
        f"{facts['sequences_per_second_with_start_up']:.4g} sequences/s with start-up, checkpoints "
        "and evaluations"
    ]
    if "sequences_per_second" in facts:
        lines.append(
            f"training without them took {facts['steady_seconds']:.2f} s for "
            f"{facts['steady_sequences']} sequences: {facts['sequences_per_second']:.4g} "
            "sequences/s"
        )
    return lines


def prediction_lines(
    batch_seconds: Sequence[float], *, seconds: float, sequences: int, steady_sequences: int
) -> list[str]:
    """The totals of a prediction, in words.

    Args:
      batch_seconds: of each batch of a rank; the first is start-up for the most part.
      seconds: all of it.
      sequences: of all ranks.
      steady_sequences: the same without the first batches.
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
