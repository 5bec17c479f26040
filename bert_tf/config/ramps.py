"""Ramps as written by users: the stages of --batch_ramp and --length_ramp."""

from __future__ import annotations

import dataclasses
import math
import re

from bert_tf.util.errors import UserError
from bert_tf.util.ramps import Ramp

_STAGE = re.compile(r"(\d+):(\d+)")
_GROWTH = re.compile(r"(\d+)\+(\d+):(\d+)(seq)?")

# Sequences are cut to multiples of this, for which products are fast.
_LENGTH_STEP = 8


@dataclasses.dataclass(frozen=True)
class RampSettings:
    """A ramp in single-rank updates, before its last value is known.

    Attributes:
      flag: the name of its flag.
      text: the flag's value.
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
