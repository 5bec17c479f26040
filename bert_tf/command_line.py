"""What the commands share: numbers in flags, and what becomes of a wrong flag.

A number is defined by ``flags.DEFINE(Number(), name, default, help)``, in the module that it
belongs to: absl notes the module that calls, and --help shows flags by it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Callable, NoReturn

from absl import app, flags

from bert_tf.errors import UserError, exit_on_user_error

# Numbers are used in float32, where what is more is infinite.
LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


class Number(flags.FloatParser):
    """Parses to a float that is a number; absl's own parser lets NaN pass all bounds.

    Args:
      lower_bound: least value, None for any.
      infinite: whether inf and -inf mean something; else only what float32 can hold is taken.
    """

    def __init__(self, *, lower_bound: float | None = None, infinite: bool = False) -> None:
        super().__init__(lower_bound=lower_bound)
        self._infinite = infinite

    def convert(self, argument: int | float | str) -> float:
        """The value; raises ValueError with the reason if it is none."""
        value = super().convert(argument)
        if math.isnan(value):
            raise ValueError("must be a number")
        if not self._infinite and abs(value) > LARGEST_FLOAT32:
            raise ValueError("must be a finite number")
        return value


def run_command(main: Callable[[Sequence[str]], object]) -> NoReturn:
    """Runs ``main`` as ``app.run`` does; a wrong flag ends the process as any UserError does."""
    exit_on_user_error(functools.partial(app.run, main, flags_parser=parse_flags))


def parse_flags(arguments: Sequence[str]) -> list[str]:
    """What is left of the arguments; raises UserError for a wrong flag."""
    try:
        return flags.FLAGS(list(arguments))
    except flags.Error as error:
        text = " ".join(str(error).split()).rstrip(" .").removeprefix("flag ")
        raise UserError(f"{text}; --help lists the flags.") from error
