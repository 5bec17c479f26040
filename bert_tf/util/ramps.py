"""Ramps: integers that grow in stages with the position in training.

A *position* is the number of updates that consumed data before an update. A ramp's value at a
position, and its sum up to there, depend on nothing else, so a run can resume anywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import math

_MOST_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Ramp:
    """A number that changes in stages.

    Attributes:
      values: the value of each stage; one more than there are joins.
      joins: the positions at which one stage follows another, in ascending order. Of stages with
        the same join, only the last one has any positions.
    """

    values: tuple[int, ...]
    joins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.values) != len(self.joins) + 1 or list(self.joins) != sorted(self.joins):
            raise ValueError(f"stages of {self.values} cannot be joined at {self.joins}")

    @property
    def last(self) -> int:
        """The value of the last stage."""
        return self.values[-1]

    def at(self, position: int) -> int:
        """The value at a position."""
        return self.values[bisect.bisect_right(self.joins, position)]

    def total(self, begin: int, end: int) -> int:
        """The sum of the values at positions ``begin`` to ``end`` - 1."""
        total = self.values[0] * (end - begin)
        for before, after, join in zip(self.values, self.values[1:], self.joins):
            total += (after - before) * (end - min(max(join, begin), end))
        return total

    def position_of(self, total: int) -> int:
        """The last position from 0 on before which the values add up to at most ``total``."""
        position = 0
        for value, join in zip(self.values, (*self.joins, None)):
            fits = total // value
            if join is None or position + fits < join:
                return position + fits
            total -= (join - position) * value
            position = join
        raise AssertionError("the last stage has no end")

    def nearest_position(self, total: int) -> int:
        """The position before which the values add up to about ``total``."""
        position = self.position_of(total)
        return round(position + (total - self.total(0, position)) / self.at(position))

    def length_of(self, total: float) -> int:
        """The smallest number of positions whose values add up to ``total`` or more."""
        whole = math.ceil(total)
        position = self.position_of(whole)
        return position + (self.total(0, position) < whole)

    def shifted(self, positions: int) -> Ramp:
        """The ramp whose value at p is this one's at p + ``positions``."""
        return Ramp(self.values, tuple(join - positions for join in self.joins))

    def __str__(self) -> str:
        """The stages as ``value:first position``, separated by commas."""
        stages = [f"{v}:{p}" for v, p in zip(self.values, (0, *self.joins))]
        if len(stages) <= _MOST_SHOWN:
            return ",".join(stages)
        return f"{','.join(stages[:3])},...,{stages[-1]} ({len(stages)} stages)"
