"""The one exception for mistakes that a user can mend."""

from __future__ import annotations

import sys
from typing import Callable, TypeVar

Result = TypeVar("Result")


class UserError(Exception):
    """Bad input: one sentence that names the file, flag or value and says what to do."""


def exit_on_user_error(function: Callable[..., Result], *args: object) -> Result:
    """Calls ``function(*args)``; a :class:`UserError` ends the process as one line, status 2."""
    try:
        return function(*args)
    except UserError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


def first_line(error: BaseException) -> str:
    """The first line of another library's message, for a sentence of ours to quote."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
