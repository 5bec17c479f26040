"""The one exception for mistakes that a user can mend."""

from __future__ import annotations

import errno
import re
import signal
import socket
import sys
import time
from typing import Callable, NoReturn, TypeVar

from bert_tf.console import flush_or_give_up, give_up, is_of_output, prepare_streams, say
from bert_tf.environment import launched_rank

Result = TypeVar("Result")

_SECONDS_FOR_RANK_0 = 2.0

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Bad input: one sentence that names the file, flag or value and says what to do."""


def exit_on_user_error(function: Callable[..., Result], *args: object) -> Result:
    """Calls ``function(*args)``; a :class:`UserError` ends the process as one line, status 2.

    So does a lack of memory, a full disk, and a name that is no text. Where the reader of standard
    output is gone there is nobody to tell: the status is the one that SIGPIPE gives other programs.

    Of several ranks, most make a mistake together. Rank 0 then says it for all, and its end makes
    the launcher end the others; a rank that is left says it with its name.
    """
    prepare_streams()
    try:
        for argument in sys.argv:
            argument.encode()
        result = function(*args)
        sys.stdout.flush()
        return result
    except UserError as error:
        _end(str(error))
    except UnicodeEncodeError as error:
        if not _has_undecoded(error.object):
            raise
        _end(
            f"{error.object!a} is not text in the encoding {sys.getfilesystemencoding()}; "
            "set LC_ALL=C.UTF-8, or rename the file."
        )
    except MemoryError as error:
        detail = first_line(error)
        _end(
            f"there is not enough memory{f' ({detail})' if detail else ''}; give a smaller batch, "
            "length or network."
        )
    except OSError as error:
        if is_of_output(error):
            give_up(sys.stdout)
            if isinstance(error, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)
            _end(f"standard output cannot be written ({error.strerror}); send it elsewhere.")
        if error.errno not in DISK_IS_FULL:
            raise
        where = error.filename2 or error.filename or "a file"
        _end(f"cannot write {where} ({error.strerror}); free space there, then start again.")
    finally:
        flush_or_give_up(sys.stdout)


def _end(sentence: str) -> NoReturn:
    flush_or_give_up(sys.stdout)
    rank, who = launched_rank(), ""
    if rank:
        time.sleep(_SECONDS_FOR_RANK_0)
        who = f"rank {rank} on host {socket.gethostname()}: "
    say(f"error: {who}{sentence}", stream=sys.stderr)
    sys.exit(2)


def _has_undecoded(text: str) -> bool:
    """Whether Python could not decode a byte of a name or an argument (PEP 383)."""
    return any("\udc80" <= char <= "\udcff" for char in text)


# TensorFlow 2.15 begins with where the graph was built; what failed comes after the last of these.
_GRAPH_TRACE = re.compile(r".*^Node: .*?$", re.DOTALL | re.MULTILINE)
_SAYS_NOTHING = re.compile(
    r"Graph execution error:$|Detected at node |Node: |File \"|\[\[\{\{node |Original stack trace "
    r"|Hint: |Restoring from checkpoint failed\.|\d+ root error\(s\) found\.$"
)
# Of several errors, "(0) Data loss: " stands before the first.
_NUMBER_AND_KIND = re.compile(r"^\(\d+\) (?:[A-Z][A-Za-z_ ]*: )?")


def first_line(error: BaseException) -> str:
    """The first line of another library's message that says what failed, for a sentence of ours."""
    text = str(error)
    if "Graph execution error:" in text:
        text = _GRAPH_TRACE.sub("", text, count=1)
    lines = (_NUMBER_AND_KIND.sub("", line.strip(), count=1) for line in text.splitlines())
    said = (line for line in lines if line and not _SAYS_NOTHING.match(line))
    return next(said, type(error).__name__)
