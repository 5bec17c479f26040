"""Progress lines with rate and remaining time, for long-running work."""

from __future__ import annotations

import time
from collections.abc import Callable

from bert_tf.util.console import report


def format_duration(seconds: float) -> str:
    """Formats 95 seconds as ``1m35s``; includes hours and days as needed."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    if minutes:
        return f"{minutes}m{secs:02d}s"
    return f"{secs}s"


class Progress:
    """Prints ``label: done/total unit, rate, time left``, at most once per interval.

    ``total`` is an int if the units are whole, and None if unknown; ``clock`` gives seconds, and is
    replaced in tests.
    """

    def __init__(
        self,
        label: str,
        total: float | None,
        unit: str,
        *,
        interval_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._label = label
        self._total = total
        self._unit = unit
        self._interval = interval_seconds
        self._clock = clock
        self._start = clock()
        self._last_line = self._start
        self._done: float = 0 if isinstance(total, int) else 0.0
        self._skipped: float = 0

    def advance(self, amount: float) -> None:
        """Adds ``amount`` units and prints a line if the interval has passed."""
        self._done += amount
        now = self._clock()
        if now - self._last_line >= self._interval:
            self._last_line = now
            self._print(now)

    def skip(self, amount: float) -> None:
        """Adds ``amount`` units that were done earlier and do not count for the rate."""
        self._done += amount
        self._skipped += amount

    def finish(self) -> None:
        """Prints the final line: the total, the elapsed time and the mean rate."""
        seconds = self._clock() - self._start
        rate = (self._done - self._skipped) / seconds if seconds > 0 else 0.0
        report(
            f"{self._label}: done, {_show(self._done)} {self._unit} in "
            f"{format_duration(seconds)} ({rate:,.1f} {self._unit}/s)"
        )

    def _print(self, now: float) -> None:
        rate = (self._done - self._skipped) / (now - self._start)
        # Counts of batches over several ranks may exceed the total.
        done = min(self._done, self._total) if self._total else self._done
        line = f"{self._label}: {_show(done)}"
        if self._total:
            line += f"/{_show(self._total)} {self._unit} ({100 * done / self._total:.0f}%)"
        else:
            line += f" {self._unit}"
        line += f", {rate:,.1f} {self._unit}/s"
        if self._total and rate > 0:
            line += f", {format_duration((self._total - done) / rate)} left"
        report(line)


def _show(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.1f}"
