"""Options that an algorithm declares beside itself; flags, checks and records follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Union

OptionValue = Union[bool, float, str, None]
Options = Mapping[str, OptionValue]


@dataclasses.dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``; with ``open_low`` or ``open_high``, not that bound."""

    low: float
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        if self.high is None:
            return above
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        """What a number in it is: ``in (0, 1]``, ``at least 1``, ``greater than 0``."""
        if self.high is None:
            return f"{'greater than' if self.open_low else 'at least'} {self.low:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"in {left}{self.low:g}, {self.high:g}{right}"


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting of some algorithms, which they take as a keyword argument.

    Attributes:
      default: the value of an option that is not given.
      flag: the name of its flag, None if users cannot set it.
      help_text: the flag's help text.
      kind: the type of its values: bool, int, float or str; None for that of the default.
      bounds: where its values must lie; None for anywhere.
      choices: its possible values, if it is a text with a few of them.
      counts_steps: whether it is a number of updates on one rank, which is divided by the number of
        ranks wherever all steps are.
    """

    default: OptionValue
    flag: str | None = None
    help_text: str = ""
    kind: type | None = None
    bounds: Interval | None = None
    choices: tuple[str, ...] = ()
    counts_steps: bool = False

    @property
    def value_type(self) -> type:
        """The type of its values other than None."""
        return self.kind or type(self.default)

    def problem(self, value: OptionValue) -> str | None:
        """A sentence about a value that is out of bounds or not a choice; None for a valid one."""
        if self.choices and value not in self.choices:
            return f"--{self.flag}={value} is not one of {', '.join(self.choices)}."
        if self.bounds is not None and value is not None and value not in self.bounds:
            return f"--{self.flag}={value:g} must be {self.bounds}."
        return None
