"""Failures of ranks, and the message about them for the whole job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
from collections.abc import Iterable, Mapping

from bert_tf.util.errors import UserError, first_line

USER_ERROR = "user error"
CRASH = "crash"
ENDED = "ended"
SILENT = "silent"
ABSENT = "absent"
# The rank itself is healthy: it was waiting for another rank when Horovod gave up.
CUT_OFF = "cut off"

# Exit status of the job; 2 always means a user's mistake.
STATUS = {
    USER_ERROR: 2,
    CRASH: 1,
    ENDED: 3,
    SILENT: 3,
    ABSENT: 3,
    CUT_OFF: 3,
}

# Causes precede their effects.
_CAUSES_FIRST = list(STATUS)

_SENTENCES = {
    CRASH: "{who} failed with {text}; the stack trace is above",
    ENDED: "the process of {who} ended without a message: it was killed, or crashed",
    SILENT: (
        "no sign of life from {who} for {timeout:g} seconds (--rank_timeout): it was stopped, or "
        "the host or its network failed"
    ),
    ABSENT: "{who} did not take part in the operation that the other ranks were waiting for",
    CUT_OFF: "Horovod gave up on {who} ({text})",
}

_SECONDS_TO_WRITE = 1.0

_HOROVODS_ERRORS = ("Horovod has been shut down", "HorovodInternalError", "Horovod has not been")


@dataclasses.dataclass(frozen=True)
class Failure:
    """The failure of a rank: a kind from above, and an error message or a place in the code."""

    kind: str
    text: str = ""


def failure_of(error: Exception) -> Failure:
    """The failure that describes an exception that ends a rank."""
    if isinstance(error, UserError):
        return Failure(USER_ERROR, str(error))
    if is_cut_off(error):
        return Failure(CUT_OFF, first_line(error))
    return Failure(CRASH, f"{type(error).__name__}: {first_line(error)}")


def is_cut_off(error: Exception) -> bool:
    """Whether Horovod gave up because of another rank."""
    return any(text in str(error) for text in _HOROVODS_ERRORS)


def describe_failures(
    failures: Mapping[int, Failure],
    *,
    hosts: Mapping[int, str],
    timeout_seconds: float,
    advice: str,
) -> tuple[str, int]:
    """A sentence about the cause among ``failures`` (by rank, in order of time), and its status.

    ``advice`` is what to do, unless the user made a mistake.
    """
    kind = min((failure.kind for failure in failures.values()), key=_CAUSES_FIRST.index)
    text = next(failure.text for failure in failures.values() if failure.kind == kind)
    # Errors are the same if their messages are.
    same = [
        rank for rank, failure in failures.items() if failure.kind == kind and failure.text == text
    ]
    if kind == USER_ERROR:
        # An error of rank 0 and another rank concerns all ranks.
        is_common = len(same) > 1 and 0 in same
        return (text if is_common else f"{name_ranks(same, hosts)}: {text}"), STATUS[kind]
    sentence = _SENTENCES[kind].format(
        who=name_ranks(same, hosts), text=text, timeout=timeout_seconds
    )
    return f"{sentence}; {advice}.", STATUS[kind]


def name_ranks(ranks: Iterable[int], hosts: Mapping[int, str]) -> str:
    """``rank 1 on host b``, or ``ranks 2, 3 on host b and rank 4 on host c``."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_host.setdefault(hosts[rank], []).append(rank)
    return " and ".join(
        f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} on host {host}"
        for host, numbers in by_host.items()
    )


def write_last_words(text: str) -> None:
    """Writes to standard error before the process ends, whether or not anyone reads it.

    Bypasses sys.stderr, whose lock another thread may hold forever, and does not block on a pipe
    without a reader, whether it is broken or full.
    """
    if sys.__stderr__ is None:  # closed before Python started; descriptor 2 may now be another file
        return
    data = text.encode(errors="replace")
    with contextlib.suppress(OSError):
        for start in range(0, len(data), select.PIPE_BUF):  # writes of this size do not block
            if not select.select([], [2], [], _SECONDS_TO_WRITE)[1]:
                return
            os.write(2, data[start : start + select.PIPE_BUF])
