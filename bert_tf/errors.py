"""The one exception for mistakes that a user can mend."""

from __future__ import annotations

import socket
import sys
import time
from typing import Callable, TypeVar

from bert_tf.environment import launched_rank

Result = TypeVar("Result")

_SECONDS_FOR_RANK_0 = 2.0


class UserError(Exception):
    """Bad input: one sentence that names the file, flag or value and says what to do."""


def exit_on_user_error(function: Callable[..., Result], *args: object) -> Result:
    """Calls ``function(*args)``; a :class:`UserError` ends the process as one line, status 2.

    Of several ranks, most make a mistake together. Rank 0 then says it for all, and its end makes
    the launcher end the others; a rank that is left says it with its name.
    """
    try:
        return function(*args)
    except UserError as error:
        sys.stdout.flush()
        rank, who = launched_rank(), ""
        if rank:
            time.sleep(_SECONDS_FOR_RANK_0)
            who = f"rank {rank} on host {socket.gethostname()}: "
        print(f"error: {who}{error}", file=sys.stderr, flush=True)
        sys.exit(2)


def first_line(error: BaseException) -> str:
    """The first line of another library's message, for a sentence of ours to quote."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
