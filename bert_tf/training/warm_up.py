"""Which updates of a run are slow because it has only begun, or because shapes are new."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


class WarmUp:
    """Tells updates that may have compiled something from those that show the steady state.

    XLA compiles a cluster when it first runs, and for every further shape of its inputs in the
    first or the second update that has it.
    """

    _STEADY_SAMPLES = 9

    def __init__(self, updates: int = 1) -> None:
        """``updates`` is how many of each shape are warm-up."""
        self._updates = updates
        self._warm: dict[tuple[int, ...], list[float]] = {}
        self._steady: dict[tuple[int, ...], list[float]] = {}

    def note(self, shape: Sequence[int], seconds: float) -> bool:
        """Takes note of an update of a batch's ``shape``; whether it shows the steady state."""
        key = tuple(shape)
        warm = self._warm.setdefault(key, [])
        if len(warm) < self._updates:
            warm.append(seconds)
            return False
        steady = self._steady.setdefault(key, [])
        if len(steady) < self._STEADY_SAMPLES:
            steady.append(seconds)
        return True

    @property
    def shapes(self) -> int:
        """How many shapes there were."""
        return len(self._warm)

    @property
    def extra_seconds(self) -> float:
        """What warm-up took beyond as many steady updates, of the shapes that have such."""
        return sum(
            max(0.0, sum(self._warm[shape]) - self._updates * statistics.median(steady))
            for shape, steady in self._steady.items()
        )
