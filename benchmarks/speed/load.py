"""How much of the machine other processes take while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

# Columns of /proc/stat's first line that are time without work: idle and waiting for a disk.
_IDLE = (3, 4)
_COLUMNS = 8  # those after them, guests, are part of the first two


class _Reading(NamedTuple):
    wall: float
    busy: float | None
    this_process: float


class ForeignLoad:
    """Measures from its creation on."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """``stat`` counts the machine's time in the form of Linux; it may be missing."""
        self._stat = stat
        self._start = self._read()

    def share(self) -> float | None:
        """The share in [0, 1] of the machine's cores that others took; None where unknown.

        Others are all processes but this one and those that it started and that have ended and,
        where a hypervisor says so, other machines.
        """
        now = self._read()
        if now.busy is None or self._start.busy is None or now.wall <= self._start.wall:
            return None
        others = (now.busy - self._start.busy) - (now.this_process - self._start.this_process)
        available = (now.wall - self._start.wall) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, others / available))

    def _read(self) -> _Reading:
        busy = None
        if self._stat.is_file():
            columns = self._stat.read_text(encoding="ascii").splitlines()[0].split()[1:]
            ticks = [int(value) for value in columns[:_COLUMNS]]
            worked = sum(value for column, value in enumerate(ticks) if column not in _IDLE)
            busy = worked / os.sysconf("SC_CLK_TCK")
        return _Reading(time.perf_counter(), busy, sum(os.times()[:4]))
