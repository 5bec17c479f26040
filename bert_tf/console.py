"""The standard streams, also where they are a pipe whose reader is gone or a file on a full disk.

A short command's output is its result: what cannot be written ends it (``errors.py``). Lines that
accompany work are not: the work goes on without them.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from bert_tf.environment import launched_rank


class _Output:
    """Standard output, which remembers the error that writing to it last ended with."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self._noting_failure():
            return self.stream.write(text)

    def flush(self) -> None:
        with self._noting_failure():
            self.stream.flush()

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise


def prepare_streams() -> None:
    """Lets the standard streams take any text; one that was closed at the start leads nowhere.

    The C locale's ASCII becomes UTF-8, as Python itself has it unless it is told otherwise. What
    a terminal's encoding lacks is written as an escape.
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


def say(text: str, *, stream: TextIO | None = None, end: str = "\n") -> None:
    """Prints a line beside the work that it tells of, which no failure to print it ends.

    A ``stream`` (None: standard output) that fails is given up: all that is written to it from then
    on goes nowhere.
    """
    stream = stream or sys.stdout
    try:
        print(text, file=stream, end=end, flush=True)
    except OSError as error:
        give_up(stream)
        if stream is sys.stdout:
            reason = f"standard output cannot be written ({error.strerror})"
            say(f"warning: {reason}; going on without it", stream=sys.stderr)


def warn(text: str) -> None:
    """Says what a user should know before the work; of several ranks, rank 0 says it for all."""
    if launched_rank() == 0:
        say(f"warning: {text}")


def is_of_output(error: OSError) -> bool:
    """Whether it was standard output that could not be written, after ``prepare_streams``."""
    return isinstance(sys.stdout, _Output) and sys.stdout.failure is error


def flush_or_give_up(stream: TextIO) -> None:
    """Writes what is buffered, or gives the stream up: Python's end would show a stack trace."""
    try:
        stream.flush()
    except OSError:
        give_up(stream)


def give_up(stream: TextIO) -> None:
    """Sends all that is still to be written on ``stream``, and its buffer, nowhere."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()
