"""Detects, in a separate thread, whether this process makes progress.

Progress is visible: a working Python thread uses CPU time, and a thread that reads files moves from
line to line. A main thread inside a session call computes or waits for other ranks, which cannot be
distinguished here and is fine, unless the call may be waiting for a record that is not being read.
A slow disk that still delivers records is not a hang, even if every look finds the same read.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import FrameType

import bert_tf

_PACKAGE = Path(bert_tf.__file__).parent
_READERS = tuple(str(_PACKAGE / room) for room in ("input", "records"))
_SESSION = "tensorflow/python/client/session.py"

Stack = Sequence[FrameType]


class Activity:
    """Reports how long this process has been stuck, and where."""

    def __init__(
        self, records_read: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``records_read`` changes with every record that is read; ``clock`` returns seconds."""
        self._records_read = records_read
        self._clock = clock
        self._main = threading.main_thread().ident
        assert self._main is not None, "a thread that has started has an identity"
        self._cpu_clock = time.pthread_getcpuclockid(self._main)
        self._last: Hashable = None
        self._since = clock()

    def look(self) -> tuple[float, str]:
        """Seconds without progress since an earlier look (0.0 if not stuck), and where."""
        main, readers = self._stacks()
        if not any(frame.f_code.co_filename.endswith(_SESSION) for frame in main):
            moves: Hashable = time.clock_gettime_ns(self._cpu_clock)
            stuck: Stack = main
        else:
            moves = tuple((id(frame), frame.f_lasti) for stack in readers for frame in stack)
            stuck = readers[0] if readers else ()
        now = (moves, self._records_read())
        if not stuck or now != self._last:
            self._last, self._since = now, self._clock()
            return 0.0, ""
        return self._clock() - self._since, describe(stuck)

    def _stacks(self) -> tuple[Stack, list[Stack]]:
        """The main thread's frames, and those of each thread that reads records."""
        main: Stack = ()
        readers = []
        for thread, frame in sys._current_frames().items():
            stack = _stack_of(frame)
            if thread == self._main:
                main = stack
            elif any(frame.f_code.co_filename.startswith(_READERS) for frame in stack):
                readers.append(stack)
        return main, readers


def describe(stack: Stack) -> str:
    """A stack's innermost frame in this package or, if there is none, its innermost frame."""
    in_package = [
        frame for frame in stack if Path(frame.f_code.co_filename).is_relative_to(_PACKAGE)
    ]
    frame = [*in_package, *stack][0]
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(_PACKAGE.parent) if in_package else path.name
    return f"{frame.f_code.co_name} ({name}, line {frame.f_lineno})"


def _stack_of(frame: FrameType | None) -> Stack:
    """The frames, innermost first."""
    stack = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return stack
