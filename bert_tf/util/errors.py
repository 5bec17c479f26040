"""Errors that the user can fix, which end a program with one sentence instead of a stack trace."""

from __future__ import annotations

import errno
import os
import re
import reprlib
import signal
import socket
import sys
import time
from typing import Callable, NoReturn, TypeVar

from bert_tf.util.console import flush_or_give_up, give_up, is_stdout_error, prepare_streams, say
from bert_tf.util.environment import launched_rank
from bert_tf.util.installation import explain_missing

Result = TypeVar("Result")

_SECONDS_FOR_RANK_0 = 2.0
_SHOWN_CHARACTERS = 80
_QUOTED_CHARACTERS = 500
_REPR = reprlib.Repr()
_REPR.maxlevel = 2
_REPR.maxstring = _SHOWN_CHARACTERS

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_ADVICE = {
    **dict.fromkeys(DISK_IS_FULL, "free space there, then start again"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "check its permissions and those of its directory, or choose another one",
    ),
    errno.ENOENT: "check the path, and leave its files alone while the program runs",
    errno.EROFS: "choose a place that can be written",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}

_SAID_BY_TENSORFLOW = {os.strerror(code): code for code in (*_ADVICE, errno.EIO, errno.ESTALE)}
_TENSORFLOW_FILE_ERROR = re.compile(rf"(\S+); ({'|'.join(map(re.escape, _SAID_BY_TENSORFLOW))})\b")


class UserError(Exception):
    """Bad input: one sentence that names the file, flag or value and what to do about it."""


class RepairableError(UserError):
    """An error whose cause is outside flags and input, such as a full disk; a retry may succeed.

    Work finished before the error is worth keeping.
    """


def short_repr(value: object) -> str:
    """The beginning of a value's ``repr``, about a line, to quote file contents in a message.

    The time does not depend on how large or how deeply nested ``value`` is.
    """
    text = _REPR.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def exit_on_user_error(function: Callable[..., Result], *args: object) -> Result:
    """Calls ``function(*args)``; a :class:`UserError` ends the process with one line and status 2.

    So do a lack of memory, a file that the system denies access to, a package that is not installed
    and a file name that cannot be decoded. If the reader of standard output is gone, the process
    ends silently with the status of SIGPIPE; after Ctrl-C, with that of SIGINT.

    Most mistakes affect all ranks alike. Rank 0 then prints the message, and the launcher ends the
    other ranks; a rank still alive after that prints its own message with its rank.
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
            "set LC_ALL=C.UTF-8 or rename the file."
        )
    except MemoryError as error:
        detail = first_line(error)
        _end(
            f"out of memory{f' ({detail})' if detail else ''}; use a smaller batch, sequence "
            "length or network."
        )
    except ModuleNotFoundError as error:
        missing = explain_missing(error.name)
        if missing is None:
            raise
        _end(missing)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another Ctrl-C ends the rest of the work
        say("interrupted", stream=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if is_stdout_error(error):
            give_up(sys.stdout)
            if isinstance(error, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)
            _end(f"standard output cannot be written ({error.strerror}); redirect it elsewhere.")
        sentence = explain_os_error(error)
        if sentence is None:
            raise
        _end(sentence)
    except Exception as error:
        sentence = _explain_tensorflow_error(error)
        if sentence is None:
            raise
        _end(sentence)
    finally:
        flush_or_give_up(sys.stdout)
        flush_or_give_up(sys.stderr)


def explain_os_error(error: OSError) -> str | None:
    """A sentence about a file that cannot be used; None if the error is not about a file."""
    named, is_full = error.filename2 or error.filename, error.errno in DISK_IS_FULL
    has_name = isinstance(named, (str, bytes))  # not an open file's descriptor
    if not (has_name or is_full):
        return None
    name = os.fsdecode(named) if has_name else "a file"
    verb = "write" if is_full else "use"
    return f"cannot {verb} {name} ({error.strerror}); {advice_on(error)}."


def _explain_tensorflow_error(error: Exception) -> str | None:
    """Like :func:`explain_os_error`, for errors of TensorFlow's file system."""
    found = _TENSORFLOW_FILE_ERROR.search(str(error))
    if found is None or not type(error).__module__.startswith("tensorflow."):
        return None
    path, reason = found.groups()
    return explain_os_error(OSError(_SAID_BY_TENSORFLOW[reason], reason, path))


def advice_on(error: OSError) -> str:
    """What a user can do about a file system error."""
    return _ADVICE.get(error.errno or 0, "check that path and its disk, then start again")


def _end(sentence: str) -> NoReturn:
    flush_or_give_up(sys.stdout)
    rank, who = launched_rank(), ""
    if rank:
        time.sleep(_SECONDS_FOR_RANK_0)
        who = f"rank {rank} on host {socket.gethostname()}: "
    say(f"error: {who}{_on_one_line(sentence)}", stream=sys.stderr)
    sys.exit(2)


def _on_one_line(sentence: str) -> str:
    """Escapes control characters, which file names may contain."""
    return "".join(
        char if char >= " " and char not in "\x7f\x85\u2028\u2029" else repr(char)[1:-1]
        for char in sentence
    )


def _has_undecoded(text: str) -> bool:
    """Whether a file name or argument contains bytes that Python could not decode (PEP 383)."""
    return any("\udc80" <= char <= "\udcff" for char in text)


# TensorFlow 2.15 first prints where the graph was built; the error follows the last of these lines.
_GRAPH_TRACE = re.compile(r".*^Node: .*?$", re.DOTALL | re.MULTILINE)
_UNINFORMATIVE = re.compile(
    r"Graph execution error:$|Detected at node |Node: |File \"|\[\[\{\{node |Original stack trace "
    r"|Hint: |Restoring from checkpoint failed\.|\d+ root error\(s\) found\.$"
)
# Multiple errors are numbered: "(0) Data loss: ".
_NUMBER_AND_KIND = re.compile(r"^\(\d+\) (?:[A-Z][A-Za-z_ ]*: )?")


def first_line(error: BaseException) -> str:
    """The first informative line of another library's error message, to quote in our own.

    Long lines are cut, since they may quote file contents.
    """
    text = str(error)
    if "Graph execution error:" in text:
        text = _GRAPH_TRACE.sub("", text, count=1)
    lines = (_NUMBER_AND_KIND.sub("", line.strip(), count=1) for line in text.splitlines())
    informative = (line for line in lines if line and not _UNINFORMATIVE.match(line))
    return next(informative, type(error).__name__)[:_QUOTED_CHARACTERS]
