"""Ramps: integers that grow in stages with the position in training, and how users write them.

A *position* is the number of updates that consumed data before an update. A ramp's value at a
position, and its sum up to there, depend on nothing else, so a run can resume anywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import re

from bert_tf.util.errors import UserError

_STAGE = re.compile(r"(\d+):(\d+)")
_GROWTH = re.compile(r"(\d+)\+(\d+):(\d+)(seq)?")

# Sequences are cut to multiples of this, for which products are fast.
_LENGTH_STEP = 8

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


@dataclasses.dataclass(frozen=True)
class RampSettings:
    """A ramp in single-rank updates, before its last value is known.

    Attributes:
      stages: (value, first update) pairs; empty for growth in equal steps.
      start, step: the first value, and the difference between stages.
      duration: number of updates or sequences after which growth is complete.
      in_sequences: whether it counts sequences: as in Megatron-LM's --rampup-batch-size, every
        stage consumes equally many sequences.
    """

    flag: str
    text: str
    stages: tuple[tuple[int, int], ...] = ()
    start: int = 0
    step: int = 0
    duration: int = 0
    in_sequences: bool = False

    def ramp(self, full: int, *, full_flag: str, divisor: int = 1) -> Ramp:
        """The ramp up to ``full``, in updates of ``divisor`` ranks, rounded up.

        Raises UserError for stages that do not grow from 0 up to ``full``, which messages call
        ``full_flag``.
        """
        shown = f"--{self.flag}={self.text}"
        stages = self.stages or self._grown(full, f"{full_flag} {full}")
        values, begins = zip(*stages)
        if begins[0] != 0:
            raise UserError(
                f"{shown} does not cover the updates before {begins[0]}; start with a stage at "
                f"update 0, such as {values[0]}:0."
            )
        for name, numbers in (("values", values), ("updates", begins)):
            if list(numbers) != sorted(set(numbers)):
                raise UserError(f"{shown}: the {name} of its stages must increase; correct them.")
        if values[0] < 1:
            raise UserError(f"{shown} starts with 0; give at least 1.")
        if values[-1] != full:
            raise UserError(
                f"{shown} ends with {values[-1]}, but {full_flag} is {full}; give the update at "
                f"which it reaches that, such as {full}:{begins[-1] + 1000}, or change one of them."
            )
        if self.in_sequences:
            divisor = 1
        return Ramp(values, tuple(math.ceil(begin / divisor) for begin in begins[1:]))

    def _grown(self, full: int, shown_full: str) -> list[tuple[int, int]]:
        """Stages from ``start`` to ``full`` in equal steps."""
        growth = full - self.start
        if self.start < 1 or self.step < 1 or growth < self.step or growth % self.step:
            raise UserError(
                f"--{self.flag}={self.text} does not grow from {self.start} to {shown_full} in "
                f"steps of {self.step}; change the start or the step."
            )
        number = growth // self.step
        values = [self.start + stage * self.step for stage in range(number + 1)]
        if not self.in_sequences:
            # The first update at which linear growth has reached a stage.
            begins = [-(-stage * self.duration // number) for stage in range(number + 1)]
        else:
            begins, consumed = [0], 0
            for stage, value in enumerate(values[:-1], start=1):
                updates = max(0, math.ceil((stage * self.duration / number - consumed) / value))
                consumed += updates * value
                begins.append(begins[-1] + updates)
        # Drop stages without updates.
        kept = {begin: value for value, begin in zip(values, begins)}
        return [(value, begin) for begin, value in kept.items()]


@dataclasses.dataclass(frozen=True)
class LengthRampSettings(RampSettings):
    """A ramp of lengths, whose last value, ``full``, does not depend on the number of ranks."""

    full: int = 0


def parse_ramp(text: str, *, flag: str) -> RampSettings:
    """Parses the value of a flag; raises UserError if it is not a ramp."""
    parts = text.split(",")
    found = [stage for part in parts if (stage := _STAGE.fullmatch(part.strip()))]
    if len(found) == len(parts):
        stages = tuple((int(stage[1]), int(stage[2])) for stage in found)
        return RampSettings(flag, text, stages)
    growth = _GROWTH.fullmatch(text.strip())
    if growth is None or not int(growth[3]):
        raise UserError(
            f"--{flag}={text} is not a ramp; give stages such as 64:0,128:2000,256:5000, which is "
            "64 at first, 128 from update 2000 and 256 from update 5000 on, or equal steps such as "
            "64+64:6000, which is 64 more each time until update 6000."
        )
    start, step, duration, sequences = growth.groups()
    return RampSettings(
        flag,
        text,
        start=int(start),
        step=int(step),
        duration=int(duration),
        in_sequences=sequences is not None,
    )


def parse_length_ramp(text: str, *, flag: str, max_seq_length: int) -> LengthRampSettings:
    """Like :func:`parse_ramp`, for sequence lengths; raises UserError for unsuitable ones."""
    settings = parse_ramp(text, flag=flag)
    if settings.in_sequences:
        raise UserError(
            f"--{flag}={text}: lengths grow with updates, not with sequences; leave out seq."
        )
    ramp = settings.ramp(max_seq_length, full_flag="--max_seq_length")
    wrong = [length for length in ramp.values[:-1] if length % _LENGTH_STEP]
    if wrong:
        raise UserError(
            f"--{flag}={text}: a length of {wrong[0]} is not a multiple of {_LENGTH_STEP}, for "
            "which products are fast; round it."
        )
    return LengthRampSettings(**vars(settings), full=max_seq_length)
