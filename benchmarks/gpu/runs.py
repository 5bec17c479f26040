"""Programs in processes of their own, each killed with its process group when time is over."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.process import ROOT
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json

_PROGRESS_SECONDS = 10.0
_POLL_SECONDS = 0.02


class RunError(UserError):
    """A program ended with an error; others may still work."""


class OutOfTimeError(UserError):
    """The time of a part is over; what it ran was killed."""


@dataclasses.dataclass(frozen=True)
class Deadline:
    """When a part has to end.

    Attributes:
      seconds: the part's time.
      ends: the same as a time of ``clock``.
      clock: seconds as a float.
    """

    seconds: float
    ends: float
    clock: Callable[[], float] = time.monotonic

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it."""
        return self.ends - self.clock()


@dataclasses.dataclass(frozen=True)
class Ended:
    """A program that has ended.

    Attributes:
      status: its exit status, negative if a signal ended it.
      peak_bytes: peak resident memory of its process.
    """

    status: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class Trained:
    """The record of a finished training.

    Attributes:
      directory: its --output_dir.
      record: its run.json.
      log: the lines of its log.jsonl.
      process_bytes: peak resident memory of its process.
    """

    directory: Path
    record: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    process_bytes: int

    @property
    def sequences_per_second(self) -> float:
        """The rate after start-up, without checkpoints; RunError if all updates were start-up."""
        try:
            return self.record["training"]["sequences_per_second"]
        except KeyError:
            raise RunError(f"{self.directory.name} has no update after its start-up") from None

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the GPU or, without one, of the process."""
        return self.record["training"].get("peak_gpu_memory_bytes") or self.process_bytes

    @property
    def start_seconds(self) -> float:
        """Seconds from the start of the process to the end of the first update."""
        return self.record["seconds_to_first_update"]

    def described(self) -> dict[str, Any]:
        """What a result's configuration says of the run."""
        names = ("xla_functions", "xla_shapes", "xla_compile_seconds", "git_commit")
        return {name: self.record[name] for name in names if name in self.record}


def run_program(
    command: Sequence[str],
    output: Path,
    *,
    label: str,
    deadline: Deadline,
    environment: Mapping[str, str],
    kill_when: Callable[[], bool] | None = None,
) -> Ended:
    """Runs a program to its end, with a line of progress now and then.

    Args:
      command: the program and its arguments.
      output: file for what it prints.
      label: its name in lines of progress.
      deadline: when it is killed, with all processes of its group.
      environment: all of its environment variables.
      kill_when: asked 50 times a second; once it returns True, the group is killed.

    Raises OutOfTimeError if it was killed at the deadline.
    """
    if deadline.left <= 0:
        raise OutOfTimeError(f"no time was left for {label}")
    start = said = time.monotonic()
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                seconds = time.monotonic() - start
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    return Ended(process.returncode, usage.ru_maxrss << 10)
                if deadline.left <= 0:
                    raise OutOfTimeError(
                        f"{label} was killed after {seconds:.0f} s{_last_words(output)}"
                    )
                if kill_when is not None and kill_when():
                    os.killpg(process.pid, signal.SIGKILL)
                    kill_when = None
                if time.monotonic() - said >= _PROGRESS_SECONDS:
                    said = time.monotonic()
                    print(f"  {label}: {seconds:.0f} s{_last_words(output)}", flush=True)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_json(
    command: Sequence[str],
    output: Path,
    *,
    label: str,
    deadline: Deadline,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """The JSON object that a program prints last; arguments are those of :func:`run_program`.

    Raises RunError if it fails.
    """
    ended = run_program(command, output, label=label, deadline=deadline, environment=environment)
    require_success(ended, output)
    return json.loads(output.read_text(encoding="utf-8", errors="replace").splitlines()[-1])


def require_success(ended: Ended, output: Path) -> None:
    """Raises RunError with what the program said if it failed."""
    if ended.status:
        raise RunError(_reason(output) or f"ended with status {ended.status}")


def read_training(directory: Path, process_bytes: int = 0) -> Trained:
    """Reads what a training has written; RunError if it is not there."""
    try:
        lines = (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
        record = read_json(directory / "run.json", what="run record")
    except OSError as error:
        raise RunError(f"{directory.name} left no {Path(error.filename).name}") from error
    return Trained(directory, record, [json.loads(line) for line in lines], process_bytes)


def _last_words(output: Path) -> str:
    lines = _lines(output)
    return f" ({lines[-1][:100]})" if lines else ""


def _reason(output: Path) -> str:
    """The error that a program printed: its message if it has one, else its last line."""
    lines = _lines(output)
    errors = [line for line in lines if re.match(r"error: |[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1].removeprefix("error: ")[:300]


def _lines(output: Path) -> list[str]:
    with open(output, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 16)))
        text = file.read().decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
