"""Follows a rank's launcher: the rank ends with it, and a hanging launcher is killed."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from bert_tf.ranks.failures import ENDED, STATUS, write_last_words
from bert_tf.util.environment import launched_rank, launcher_variable

_LAUNCHER_NAMES = ("mpirun", "mpiexec", "orterun")
_SECONDS_BETWEEN_CHECKS = 0.5


class Lineage:
    """The processes from this one's parent up to its launcher, to detect the launcher's end.

    A launcher may start a rank through other processes: a shell, numactl, a script that binds it to
    cores. These have the rank's variables in their environment, but the launcher itself does not.
    """

    def __init__(self, variables: Mapping[str, str], proc: Path = Path("/proc")) -> None:
        """``variables`` are this process's environment, ``proc`` tells of all others (proc(5))."""
        variable = (launcher_variable(variables) or "").encode()
        self._proc, self._processes = proc, [os.getppid()]
        while variable and variable in self._environment_of(self._processes[-1]).split(b"\0"):
            parent = self._parent_of(self._processes[-1])
            if parent is None:
                break
            self._processes.append(parent)

    @property
    def launcher(self) -> int:
        """The launcher's process id."""
        return self._processes[-1]

    def is_cut(self) -> bool:
        """Whether one of the processes has ended, so that its child has a new parent."""
        if os.getppid() != self._processes[0]:
            return True
        # None if the file cannot be opened, which proves nothing.
        return any(
            self._parent_of(child) not in (parent, None)
            for child, parent in zip(self._processes, self._processes[1:])
        )

    def _environment_of(self, process: int) -> bytes:
        """The initial environment of a process; empty if not readable, as for another user's."""
        try:
            return (self._proc / str(process) / "environ").read_bytes()
        except OSError:
            return b""

    def _parent_of(self, process: int) -> int | None:
        """The id of a process's parent; None if it cannot be read."""
        try:
            status = (self._proc / str(process) / "stat").read_bytes()
        except OSError:
            return None
        # The parent is field 4; the name, field 2, is in parentheses and may hold any bytes.
        return int(status.rpartition(b")")[2].split()[1])


@functools.cache
def end_with_launcher() -> None:
    """Ends this process within a second of its launcher's end, whatever it is doing; acts once.

    A killed launcher cannot end its ranks. They would wait for each other forever, uninterruptibly
    in MPI. Nothing reads their output any more, so failing to write the reason must not matter.
    """
    _lineage()
    threading.Thread(target=_watch_launcher, name="launcher_watch", daemon=True).start()


def _watch_launcher() -> None:
    while True:
        end_if_launcher_is_gone()
        time.sleep(_SECONDS_BETWEEN_CHECKS)


def end_if_launcher_is_gone() -> None:
    """Ends this process with a message if its launcher has ended since the first call."""
    lineage = _lineage()
    if lineage.is_cut():
        write_last_words(
            f"error: rank {launched_rank()} on host {socket.gethostname()}: the launcher that "
            f"started it (process {lineage.launcher}) is gone; start again: training resumes "
            "from its latest checkpoint.\n"
        )
        os._exit(STATUS[ENDED])


@functools.cache
def _lineage() -> Lineage:
    return Lineage(os.environ)


def kill_launcher_if_it_hangs(after_seconds: float) -> None:
    """Starts a background process that kills mpirun if it still runs ``after_seconds`` later.

    After a process has failed, mpirun ends all others and then waits for confirmation from each
    host; for an unreachable host, it waits forever. Does nothing for other launchers, or if mpirun
    runs on another host.
    """
    launcher = _lineage().launcher
    command = Path(f"/proc/{launcher}/cmdline")
    if not command.is_file():
        return
    name = Path(os.fsdecode(command.read_bytes().partition(b"\0")[0])).name
    if name not in _LAUNCHER_NAMES:
        return
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        # The process id may have been reused in the meantime.
        ["sh", "-c", f"sleep {after_seconds:g}; grep -qa {name} {command} && kill -9 {launcher}"],
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
