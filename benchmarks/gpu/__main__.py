"""Checks and measures this project on the GPU of a machine, within a few minutes.

    python -m benchmarks.gpu --json=gpu.json
    python -m benchmarks.gpu --parts=speed,batches --minutes=30 --peer_python=torch/bin/python

Parts share the time: what one leaves is the next ones', and a part whose time is over is killed
with all that it started. The table at the end and --json have a row for everything, with the reason
where something was not measured. ``--size=tiny`` tries all parts in a few minutes on a CPU.
docs/measurements/gpu.md says what the rows mean.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from absl import flags

from benchmarks.gpu import checks, speeds
from benchmarks.gpu.lab import SIZES, Lab
from benchmarks.gpu.rows import PART, has_failed, line, missing, table
from benchmarks.gpu.runs import Deadline, OutOfTimeError
from benchmarks.machine import machine_line
from benchmarks.results import Result, result
from benchmarks.script import known_names, run_benchmark, shared_flags
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.progress import format_duration
from bert_tf.util.temporary import TemporaryDirectory

_LEAST_SECONDS = 2.0  # a part that has less is skipped
DONE, FAILED, KILLED, SKIPPED = "done", "failed", "killed", "skipped"


@dataclasses.dataclass(frozen=True)
class Part:
    """One of the parts.

    Attributes:
      measure: yields its results.
      weight: its time relative to that of others.
    """

    measure: Callable[[Lab], Iterator[Result]]
    weight: float


PARTS = {
    "device": Part(checks.device, 30),
    "types": Part(checks.types, 60),
    "curves": Part(checks.curves, 40),
    "resume": Part(checks.resume, 40),
    "cpu": Part(checks.cpu, 40),
    "speed": Part(speeds.speed, 130),
    "starts": Part(speeds.starts, 80),
    "policy": Part(speeds.policy, 30),
    "batches": Part(speeds.batches, 30),
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """The time that all parts share.

    Attributes:
      ends: when it is over, a time of ``clock``.
      clock: seconds as a float.
    """

    ends: float
    clock: Callable[[], float] = time.monotonic

    def deadline(self, weight: float, weights_left: float) -> Deadline:
        """The deadline of the next part.

        Args:
          weight: that of the part.
          weights_left: the sum of its weight and those of all parts after it.
        """
        now = self.clock()
        seconds = max(0.0, self.ends - now) * weight / weights_left
        return Deadline(seconds, now + seconds, self.clock)


def measure(
    environment: Mapping[str, str], values: flags.FlagValues = flags.FLAGS
) -> Iterator[Result]:
    """Runs the parts that the flags choose; raises UserError at the end if one of them failed.

    ``environment``: the user's variables, without what this process has set for itself.
    """
    parts = {name: PARTS[name] for name in known_names("parts", PARTS, values)}
    budget = Budget(time.monotonic() + 60 * values.minutes)
    data = Path(values.data).resolve() if values.data else None
    peer = shutil.which(values.peer_python or sys.executable)
    if peer is None:
        raise UserError(f"--peer_python={values.peer_python} is not a program.")
    rows: list[Result] = []
    # Whoever ends this process gets the results so far, and no program is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(machine_line(), flush=True)
    with TemporaryDirectory("gpu") as directory:
        lab = Lab(
            Path(directory), SIZES[values.size], os.path.abspath(peer), environment, data,
            budget.deadline(1, 1),
        )  # fmt: skip
        try:
            for row in run_parts(parts, lab, budget):
                rows.append(row)
                yield row
        finally:
            print("\n".join(["", *table(rows)]), flush=True)
    raise_failures(rows)


def run_parts(parts: Mapping[str, Part], lab: Lab, budget: Budget) -> Iterator[Result]:
    """The results of all parts, each followed by one that says how the part ended."""
    weights = [part.weight for part in parts.values()]
    for number, (name, part) in enumerate(parts.items()):
        lab.part = name
        lab.deadline = budget.deadline(part.weight, sum(weights[number:]))
        limit = lab.deadline.seconds
        print(f"\n{name}: at most {format_duration(limit)}", flush=True)
        start = budget.clock()
        for row in _run_part(part, lab):
            config = {**row["config"], "part": name}
            if row["unit"] == PART:
                config.update(seconds=budget.clock() - start, limit_seconds=limit)
            row = {**row, "config": config}
            print(line(row), flush=True)
            yield row


def _run_part(part: Part, lab: Lab) -> Iterator[Result]:
    """A part's results, and its end: ``DONE``, ``FAILED``, ``KILLED`` or ``SKIPPED``."""
    try:
        if lab.deadline.left < _LEAST_SECONDS:
            yield missing(SKIPPED, PART, OutOfTimeError("no time was left of --minutes"))
            return
        yield from part.measure(lab)
        yield result(DONE, 1.0, PART, {})
    except OutOfTimeError as error:
        yield missing(KILLED, PART, error)
    except Exception as error:  # whatever it is, the other parts are measured
        is_known = isinstance(error, UserError)
        why = str(error) if is_known else f"{type(error).__name__}: {first_line(error)}"
        yield missing(FAILED, PART, UserError(why))


def raise_failures(rows: Sequence[Result]) -> None:
    """Raises UserError if something failed; lack of time is not a failure."""
    failed = [f"{row['config']['part']} ({row['name']})" for row in rows if has_failed(row)]
    if failed:
        raise UserError(f"not as it should be: {', '.join(failed)}; the table has the reasons.")


FLAGS = {
    "parts": (list(PARTS), f"What to do, in this order: some of {', '.join(PARTS)}."),
    "minutes": (8.0, "Time for all parts together.", 0.05),
    "size": (tuple(SIZES), "full: the published shapes; tiny: a try of everything on a CPU."),
    "peer_python": (str, "Interpreter with torch and transformers (default: this one)."),
    "data": (str, "Directory of pre-training records for the loss curves and checks."),
    **shared_flags("json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, functools.partial(measure, dict(os.environ)))
