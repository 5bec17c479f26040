"""Which updates of a run are slow because it has just started, or because shapes are new."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


class WarmUp:
    """Distinguishes updates that may include compilation from those in the steady state.

    XLA compiles a cluster when it first runs, and for every new input shape in the first or second
    update with that shape.
    """

    _STEADY_SAMPLES = 9

    def __init__(self, updates: int = 1) -> None:
        """The first ``updates`` updates of each shape are warm-up."""
        self._updates = updates
        self._warm: dict[tuple[int, ...], list[float]] = {}
        self._steady: dict[tuple[int, ...], list[float]] = {}

    def note(self, shape: Sequence[int], seconds: float) -> bool:
        """Records an update on a batch of ``shape``; returns whether it is in the steady state."""
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
        """The number of different shapes so far."""
        return len(self._warm)

    @property
    def extra_seconds(self) -> float:
        """How much longer warm-up took than steady updates, over shapes that have both."""
        return sum(
            max(0.0, sum(self._warm[shape]) - self._updates * statistics.median(steady))
            for shape, steady in self._steady.items()
        )
