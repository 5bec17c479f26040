"""Finds the largest batch that fits into a memory limit, from a line through peaks and by trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Callable

import numpy as np

# The search ends when a batch larger by this fraction does not fit.
TOLERANCE = 0.03


@dataclasses.dataclass(frozen=True)
class Line:
    """Peak memory as a fixed part plus a part per sequence, in bytes."""

    fixed: float
    of_a_sequence: float

    @classmethod
    def through(cls, peaks: Mapping[int, float]) -> Line:
        """The least-squares line; ``peaks`` maps at least two batch sizes to bytes."""
        of_a_sequence, fixed = np.polyfit(list(peaks), list(peaks.values()), 1)
        return cls(float(fixed), float(of_a_sequence))

    def largest_batch(self, limit: float) -> int:
        """The largest batch whose peak on the line is at most ``limit``; 0 if there is none."""
        return max(0, int((limit - self.fixed) // max(self.of_a_sequence, 1.0)))


def largest_fitting(peaks: Mapping[int, float], limit: float) -> int:
    """The largest batch in ``peaks`` that fits; 0 if none does."""
    return max((batch for batch, peak in peaks.items() if peak <= limit), default=0)


def least_exceeding(peaks: Mapping[int, float], limit: float) -> int | None:
    """The smallest batch in ``peaks`` that does not fit; None if all do."""
    return min((batch for batch, peak in peaks.items() if peak > limit), default=None)


def search(
    measure: Callable[[int], float], peaks: Mapping[int, float], *, limit: float, tries: int
) -> dict[int, float]:
    """Returns ``peaks`` with those of further batches, tried around the largest that fits.

    Args:
      measure: returns a batch's peak in bytes.
      peaks: peaks of at least two batches.
      limit: bytes.
      tries: maximum number of batches to measure. The search may end before it has found both the
        largest batch that fits and a hardly larger one that does not.
    """
    found = dict(peaks)
    for _ in range(tries):
        fits, exceeds = largest_fitting(found, limit), least_exceeding(found, limit)
        step = max(1, int(fits * TOLERANCE))
        if exceeds is not None and exceeds - fits <= step:
            break
        nearest = sorted(found, key=lambda batch: abs(found[batch] - limit))[:2]
        guess = Line.through({batch: found[batch] for batch in nearest}).largest_batch(limit)
        most = 2 * max(found) if exceeds is None else exceeds - 1
        if fits >= max(peaks):  # the line's prediction fits: look beyond it
            guess = max(guess, fits + step)
        guess = min(max(guess, fits + 1), most)
        found[guess] = measure(guess)
    return found
