"""The standard streams, including closed pipes and files on a full disk.

The output of a short command is its result, so a write error ends the program (``errors.py``).
Messages that accompany other work are different: the work continues without them.
"""

from __future__ import annotations

import codecs
import contextlib
import enum
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TextIO

from bert_tf.util.environment import launched_rank

_SECONDS_FOR_LAST_LINES = 1.0


class Grade(enum.IntEnum):
    """Severity of a note: only errors stop a run, and hints are no reason to change anything."""

    FINE = 0
    HINT = 1
    WARNING = 2
    ERROR = 3


class Note(NamedTuple):
    """A sentence about a part of the run, such as its records; the part is "" if unknown."""

    grade: Grade
    part: str
    sentence: str


# Lists that collect notes instead of having them printed; the innermost one is used. Not a context
# variable, since threads print notes, too.
_collecting: list[list[Note]] = []


class _Output:
    """Standard output that remembers its last write error."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self._recording_failure():
            return self.stream.write(text)

    def flush(self) -> None:
        with self._recording_failure():
            self.stream.flush()

    @contextlib.contextmanager
    def _recording_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise


def prepare_streams() -> None:
    """Makes the standard streams accept any text; streams closed at the start discard it.

    ASCII, from the C locale, becomes UTF-8, which is also Python's default. Characters that the
    terminal's encoding lacks are written as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(
                encoding="utf-8" if is_ascii else stream.encoding,
                errors="replace" if mode == "r" else "backslashreplace",
            )
    if not isinstance(sys.stdout, _Output):
        sys.stdout = _Output(sys.stdout)


@contextlib.contextmanager
def collected_notes() -> Iterator[list[Note]]:
    """Collects the notes of the block; nothing is printed, and other lines are dropped."""
    notes: list[Note] = []
    _collecting.append(notes)
    try:
        yield notes
    finally:
        _collecting.pop()


def say(text: str, *, stream: TextIO | None = None, end: str = "\n") -> None:
    """Prints a line about the work in progress; failing to print does not end the work.

    After a failure, everything written to ``stream`` (None: standard output) is discarded.
    """
    if _collecting:
        return
    stream = stream or sys.stdout
    try:
        print(text, file=stream, end=end, flush=True)
    except BlockingIOError:  # after stop_blocking; buffered text may still be written later
        return
    except OSError as error:
        give_up(stream)
        if stream is sys.stdout:
            reason = f"standard output cannot be written ({error.strerror})"
            say(f"warning: {reason}; continuing without it", stream=sys.stderr)


def report(text: str) -> None:
    """Prints a line about work in progress where progress is shown, on standard error."""
    say(text, stream=sys.stderr)


def say_note(note: Note, *, to: Callable[[str], None] = say) -> None:
    """Prints a note with ``to``, unless notes are being collected."""
    if _collecting:
        _collecting[-1].append(note)
    else:
        to(f"warning: {note.sentence}" if note.grade == Grade.WARNING else note.sentence)


def warn(text: str, *, part: str = "") -> None:
    """Prints a warning about a part of the run; with several ranks, only rank 0 prints."""
    if launched_rank() == 0:
        say_note(Note(Grade.WARNING, part, text))


def remark(text: str, *, part: str = "") -> None:
    """Prints something worth knowing before a run; with several ranks, only rank 0 prints."""
    if launched_rank() == 0:
        say_note(Note(Grade.HINT, part, text))


def note(text: str) -> None:
    """Prints a line; with several ranks, only rank 0 prints."""
    if launched_rank() == 0:
        say(text)


def stop_blocking() -> None:
    """Drops all further lines for which a pipe or terminal has no room.

    For a process that was asked to stop: the reader of its output may be waiting for it to end. May
    be called by a signal handler while a line is being written.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or not a file at all
            descriptor = stream.fileno()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                _write_without_blocking(descriptor)


def _write_without_blocking(descriptor: int) -> None:
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        # The flag belongs to the open file, which other processes share (a shell its terminal), so
        # open the pipe or terminal again for this process.
        opened = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # a socket, or a system without /proc
        os.set_blocking(descriptor, False)
        return
    os.dup2(opened, descriptor)
    os.close(opened)


def is_stdout_error(error: OSError) -> bool:
    """Whether ``error`` came from writing standard output, after ``prepare_streams``."""
    return isinstance(sys.stdout, _Output) and sys.stdout.failure is error


def flush_or_give_up(stream: TextIO) -> None:
    """Flushes the stream; gives it up on failure, or Python would print a stack trace at exit.

    After :func:`stop_blocking`, a reader has a short time to make room.
    """
    deadline = time.monotonic() + _SECONDS_FOR_LAST_LINES
    while True:
        try:
            stream.flush()
            return
        except BlockingIOError:
            left = max(0.0, deadline - time.monotonic())
            _, has_room, _ = select.select([], [stream.fileno()], [], left)
            if not has_room or not left:
                break
        except OSError:
            break
    give_up(stream)


def give_up(stream: TextIO) -> None:
    """Discards the buffer of ``stream`` and everything written to it from now on."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()
