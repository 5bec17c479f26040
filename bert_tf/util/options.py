"""Options: facts about a setting, declared once; flags, checks and records are derived from them.

An algorithm declares its options in its own module, and a dataclass of settings in its fields
(``bert_tf.config.declared``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, Callable, Union

from bert_tf.util.errors import UserError

# Numbers are used in float32, in which larger values are infinite.
LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127

OptionValue = Union[bool, float, str, None]
Options = Mapping[str, Any]  # each value has the type of its option


@dataclasses.dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``; ``open_low`` and ``open_high`` exclude the bound."""

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
        """What a message requires: ``be in (0, 1]``, ``be at least 1``, ``not be negative``."""
        if self == Interval(0):
            return "not be negative"
        if self.high is None:
            return f"be {'greater than' if self.open_low else 'at least'} {self.low:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"be in {left}{self.low:g}, {self.high:g}{right}"


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting: its default, its flag and its valid values.

    Attributes:
      flag: the name of its flag; "" if users cannot set it.
      kind: the type of its flag's values: bool, int, float, str or Path; None for the default's
        type.
      choices: the valid values, if it is a string with a few of them; a registry's may grow.
      counts_steps: whether it is a number of updates on one rank, which is divided by the number of
        ranks wherever all steps are.
      per_host: whether it may differ between hosts: paths of files whose contents are compared
        instead, or that only rank 0 reads and writes; threads and verbosity.
      parse: maps the value of its flag to the value of the setting; None if they are the same.
      takes_infinity: whether a numeric flag accepts inf.
      takes_auto: whether a boolean flag accepts auto, which is None as a setting.
      of_model: whether it decides predictions and is therefore stored with the trained model.
    """

    default: OptionValue
    flag: str = ""
    help_text: str = ""
    kind: type | None = None
    bounds: Interval | None = None
    advice: str = ""
    choices: Collection[str] = ()
    counts_steps: bool = False
    per_host: bool = False
    parse: Callable[[Any], Any] | None = None
    takes_infinity: bool = False
    takes_auto: bool = False
    of_model: bool = False

    @property
    def value_type(self) -> type:
        """The type of its values other than None."""
        return self.kind or type(self.default)

    def problem(self, value: Any, *, flag: str = "") -> str | None:
        """A sentence about a value that is out of bounds or not a choice; None if it is valid.

        ``flag`` is the flag that gave it, if not the usual one.
        """
        flag = flag or self.flag
        if self.choices and value not in (None, *self.choices):
            return f"--{flag}={value} is not one of {', '.join(self.choices)}."
        if isinstance(value, float) and math.isnan(value):
            return f"--{flag}=nan must be a number."
        if isinstance(value, float) and math.isinf(value) and not self.takes_infinity:
            return f"--{flag}={value:g} must be finite."
        if self.bounds is not None and value is not None and value not in self.bounds:
            advice = f"; {self.advice}" if self.advice else ""
            return f"--{flag}={shown(value)} must {self.bounds}{advice}."
        return None

    def checked(self, value: Any) -> Any:
        """A value from a file, where infinity is text; UserError for another type, or bounds."""
        kind = self.value_type
        if kind is float and (type(value) is int or value in ("inf", "-inf")):
            value = float(value)
        if type(value) is not kind and (value is not None or self.default is not None):
            raise UserError(f"--{self.flag}: {value!r} is not a {kind.__name__}.")
        problem = self.problem(value)
        if problem is not None:
            raise UserError(problem)
        return value


def shown(value: Any) -> str:
    """A value as a user would write it after the flag."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
