"""Measures the peak memory of a program and of the processes that it starts."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.util.errors import UserError

_INTERVAL = 0.1  # seconds
_PROC = Path("/proc")


class Peaks(NamedTuple):
    """Time and memory used by a program.

    Attributes:
      seconds: from its start to its end.
      main: peak resident memory of the program's own process, in bytes.
      worker: peak of the largest process that it started; 0 without any.
    """

    seconds: float
    main: int
    worker: int


def run_measured(command: Sequence[str]) -> Peaks:
    """Runs a program to its end, checking its processes ten times a second.

    Linux keeps the peak of each process, so nothing is missed except what a process allocates in
    its last tenth of a second. The program's output is withheld.

    Raises UserError with the program's last line if it fails, or if the system has no /proc.
    """
    if not (_PROC / "self" / "status").exists():
        raise UserError("memory is read from /proc, which this system lacks.")
    start = time.perf_counter()
    peaks: dict[int, int] = {}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process,
    ):
        while process.poll() is None:
            for pid in _family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), _peak(pid))
            time.sleep(_INTERVAL)
        seconds = time.perf_counter() - start
        if process.returncode:
            said.seek(0)
            last = (said.read().splitlines() or [""])[-1]
            raise UserError(f"{' '.join(command)} failed ({process.returncode}): {last}")
    main = peaks.pop(process.pid, 0)
    return Peaks(seconds, main, max(peaks.values(), default=0))


def _family(pid: int) -> list[int]:
    """A process, and all processes that it and its children have started."""
    found = [pid]
    for parent in found:
        try:
            children = (_PROC / str(parent) / "task" / str(parent) / "children").read_text()
        except OSError:  # it has ended
            continue
        found += map(int, children.split())
    return found


def _peak(pid: int) -> int:
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines() if line.startswith("VmHWM:"))
    return next((int(fields[1]) << 10 for fields in lines), 0)
