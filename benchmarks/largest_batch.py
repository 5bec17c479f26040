"""The largest batch that fits a limit of memory: by a line through peaks, and by trying it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Callable

import numpy as np

# The search ends when a batch that is larger by this share of it does not fit.
TOLERANCE = 0.03


@dataclasses.dataclass(frozen=True)
class Line:
    """Peak memory as a fixed part and one for each sequence, in bytes."""

    fixed: float
    of_a_sequence: float

    @classmethod
    def through(cls, peaks: Mapping[int, float]) -> Line:
        """The line of least squares; ``peaks`` has bytes by batch size, of two sizes at least."""
        of_a_sequence, fixed = np.polyfit(list(peaks), list(peaks.values()), 1)
        return cls(float(fixed), float(of_a_sequence))

    def largest_batch(self, limit: float) -> int:
        """The largest batch whose peak on the line is not above ``limit``; 0 if there is none."""
        return max(0, int((limit - self.fixed) // max(self.of_a_sequence, 1.0)))


def largest_fitting(peaks: Mapping[int, float], limit: float) -> int:
    """The largest batch of ``peaks`` that fits, 0 if none does."""
    return max((batch for batch, peak in peaks.items() if peak <= limit), default=0)


def least_exceeding(peaks: Mapping[int, float], limit: float) -> int | None:
    """The smallest batch of ``peaks`` that does not fit, None if all do."""
    return min((batch for batch, peak in peaks.items() if peak > limit), default=None)


def search(
    measure: Callable[[int], float], peaks: Mapping[int, float], *, limit: float, tries: int
) -> dict[int, float]:
    """``peaks`` with those of batches tried about the largest that fits.

    Args:
      measure: the peak of a batch in bytes.
      peaks: of two batches at least.
      limit: bytes.
      tries: how many batches to measure at most. The search may end before the largest one that
        fits and one that is hardly larger and does not are both known.
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
        if fits >= max(peaks):  # the line has been tried: how far is it right?
            guess = max(guess, fits + step)
        guess = min(max(guess, fits + 1), most)
        found[guess] = measure(guess)
    return found
