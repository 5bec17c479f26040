"""Programs in a terminal, with a user who types."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

CTRL_C = b"\x03"


class Terminal:
    """A pseudo-terminal with a program in it, whose process group is in the foreground.

    Attributes:
      shown: all that the program has written.
    """

    def __init__(self, command: Sequence[object], *, cwd: Path, env: Mapping[str, str]):
        self.shown = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(str(command[0]), [str(word) for word in command], dict(env))

    def type(self, text: bytes) -> None:
        """Types text; Ctrl-C is a character that the terminal makes a signal of."""
        os.write(self._terminal, text)

    def wait_for(self, text: str, *, seconds: float = 120.0) -> None:
        """Reads until the program has written ``text`` after what was waited for before."""
        begin, end = len(self.shown), time.monotonic() + seconds
        while text not in self.shown[begin:]:
            assert time.monotonic() < end, self.shown
            assert self._read(0.5) or text in self.shown[begin:], self.shown

    def finish(self, *, seconds: float = 120.0) -> int:
        """Reads until the program has ended; its exit status."""
        end = time.monotonic() + seconds
        while self._read(0.5):
            assert time.monotonic() < end, self.shown
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, seconds: float) -> bool:
        """Whether the program still has the terminal open."""
        if select.select([self._terminal], [], [], seconds)[0]:
            try:
                content = os.read(self._terminal, 1 << 16)
            except OSError:  # closed by the last process that had it
                return False
            self.shown += content.decode(errors="replace").replace("\r\n", "\n")
            return bool(content)
        return True


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip() not in ("", "Z")
