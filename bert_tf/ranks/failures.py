"""What can go wrong with a rank, and the one sentence that says so for the whole job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
from collections.abc import Iterable, Mapping

from bert_tf.errors import UserError, first_line

USER_ERROR = "user error"
CRASH = "crash"
ENDED = "ended"
SILENT = "silent"
STUCK = "stuck"
GARBLED = "garbled"
ABSENT = "absent"
# The rank itself is well: it was waiting for another one when Horovod gave up.
CUT_OFF = "cut off"

# Exit status of the job. 2 is what a mistake of the user's ends with everywhere.
STATUS = {
    USER_ERROR: 2,
    CRASH: 1,
    ENDED: 3,
    SILENT: 3,
    STUCK: 3,
    GARBLED: 3,
    ABSENT: 3,
    CUT_OFF: 3,
}

# A cause comes before what it causes.
_CAUSES_FIRST = list(STATUS)

_SENTENCES = {
    CRASH: "{who} failed with {text}; the stack trace is above",
    ENDED: "the process of {who} ended without a word: it was killed, or crashed",
    SILENT: (
        "nothing was heard of {who} for {timeout:g} seconds (--rank_timeout): stopped, or the host "
        "or its network failed"
    ),
    STUCK: "{who} did not move for {timeout:g} seconds (--rank_timeout) in {text}",
    GARBLED: "{who} sent what is not a message between ranks: {text}",
    ABSENT: "{who} did not take part in what the other ranks were waiting for",
    CUT_OFF: "Horovod gave up on {who} ({text})",
}

_SECONDS_TO_WRITE = 1.0

_HOROVODS_ERRORS = ("Horovod has been shut down", "HorovodInternalError", "Horovod has not been")


@dataclasses.dataclass(frozen=True)
class Failure:
    """What happened to one rank: a kind from above, and an error's message or a place."""

    kind: str
    text: str = ""


def failure_of(error: Exception) -> Failure:
    """The failure that an exception means for the rank that it ends."""
    if isinstance(error, UserError):
        return Failure(USER_ERROR, str(error))
    if any(text in str(error) for text in _HOROVODS_ERRORS):
        return Failure(CUT_OFF, first_line(error))
    return Failure(CRASH, f"{type(error).__name__}: {first_line(error)}")


def describe_failures(
    failures: Mapping[int, Failure],
    *,
    hosts: Mapping[int, str],
    timeout_seconds: float,
    go_on: str,
) -> tuple[str, int]:
    """One sentence on the cause among ``failures`` (by rank, in the order of time), and its status.

    Args:
      failures: at least one.
      hosts: the host of every rank.
      timeout_seconds: of --rank_timeout.
      go_on: what to do when it is nothing that a user did.
    """
    kind = min((failure.kind for failure in failures.values()), key=_CAUSES_FIRST.index)
    text = next(failure.text for failure in failures.values() if failure.kind == kind)
    # Errors are compared by their text; the places where ranks are stuck may differ.
    same = [
        rank
        for rank, failure in failures.items()
        if failure.kind == kind and (failure.text == text or kind == STUCK)
    ]
    if kind == USER_ERROR:
        # What rank 0 says together with another one is no rank's own.
        own = len(same) > 1 and 0 in same
        return (text if own else f"{name_ranks(same, hosts)}: {text}"), STATUS[kind]
    sentence = _SENTENCES[kind].format(
        who=name_ranks(same, hosts), text=text, timeout=timeout_seconds
    )
    return f"{sentence}; {go_on}.", STATUS[kind]


def name_ranks(ranks: Iterable[int], hosts: Mapping[int, str]) -> str:
    """``rank 1 on host b``, or ``ranks 2, 3 on host b and rank 4 on host c``."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_host.setdefault(hosts[rank], []).append(rank)
    return " and ".join(
        f"rank{'s' * (len(own) > 1)} {', '.join(map(str, own))} on host {host}"
        for host, own in by_host.items()
    )


def write_last_words(text: str) -> None:
    """Writes to standard error for a process that ends anyway, whether or not that can be read.

    Not through sys.stderr, whose lock another thread may hold for ever. A pipe that nobody reads
    any more is no reason to stay, whether it is broken or full.
    """
    if sys.__stderr__ is None:  # closed before Python began: 2 may be a file of the run by now
        return
    data = text.encode(errors="replace")
    with contextlib.suppress(OSError):
        for start in range(0, len(data), select.PIPE_BUF):  # so much at once does not block
            if not select.select([], [2], [], _SECONDS_TO_WRITE)[1]:
                return
            os.write(2, data[start : start + select.PIPE_BUF])
