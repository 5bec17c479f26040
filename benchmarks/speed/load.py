"""Measures how much of the machine other processes use during a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bert_tf.util import environment


class ForeignLoad:
    """Measures from its creation on."""

    def __init__(self, stat: str = "/proc/stat") -> None:
        """``stat`` contains the cores' times in Linux's format; it may be missing."""
        self._stat = stat
        self._start = self._read()

    def share(self) -> float | None:
        """The fraction in [0, 1] of this process's cores that others used; None if unknown.

        Others are all processes except this one and its finished children and, where a hypervisor
        reports it, other machines.
        """
        (start, busy_before, own_before), (now, busy, own) = self._start, self._read()
        if busy is None or busy_before is None:
            return None
        others = (busy - busy_before) - (own - own_before)
        return min(1.0, max(0.0, others / ((now - start) * environment.allowed_cores())))

    def _read(self) -> tuple[float, float | None, float]:
        """The clock, the busy seconds of the cores, and those of this process."""
        return time.perf_counter(), busy_seconds(self._stat), sum(os.times()[:4])


def busy_seconds(stat: str = "/proc/stat") -> float | None:
    """Seconds since boot during which the cores available to this process were busy.

    Includes time stolen by other virtual machines. The resolution is a hundredth of a second. None
    if the system does not report it.
    """
    cores = {f"cpu{core}" for core in getattr(os, "sched_getaffinity", lambda _: ())(0)}
    ticks = 0
    try:
        for line in Path(stat).read_text().splitlines():
            name, *fields = line.split()
            if name in cores:
                user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, fields[:8])
                ticks += user + nice + system + sum(interrupts_and_stolen)
    except (OSError, ValueError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None
