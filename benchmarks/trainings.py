"""Trainings that are compared: run_pretraining.py, one process after the other."""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.process import run_script, script_command
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json
from bert_tf.util.progress import format_duration

_RESULTS = "eval_results.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """One training with its directory.

    Attributes:
      variant: its name.
      seed: of weights, data order, masks and dropout.
      flags: all of run_pretraining.py's that are given, name to value.
      directory: its --output_dir; what it prints goes to a file next to it.
    """

    variant: str
    seed: int
    flags: Mapping[str, Any]
    directory: Path

    @property
    def name(self) -> str:
        """The variant, and the seed in words."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def output(self) -> Path:
        """The file of what it prints."""
        return self.directory.with_name(f"{self.directory.name}.txt")

    def command(self) -> list[str]:
        """The command, without the interpreter."""
        return script_command("run_pretraining.py", {**self.flags, "output_dir": self.directory})


def run_trainings(trainings: Sequence[Training], *, may_diverge: bool = False) -> None:
    """Runs what has not ended, one process at a time, each from where it stopped.

    Args:
      trainings: in the order in which they run.
      may_diverge: whether a training that stops at a loss or gradient that is not finite has ended.

    Raises UserError for a directory that another training wrote, and for one that fails.
    """
    for training in trainings:
        _check_same_flags(training)
    missing = [training for training in trainings if not _has_ended(training, may_diverge)]
    for training in trainings:
        if training not in missing:
            print(f"{training.name}: finished before, in {training.directory}", flush=True)
    start = time.monotonic()
    for done, training in enumerate(missing, 1):
        _run(training, may_diverge)
        left = (len(missing) - done) * (time.monotonic() - start) / done
        print(f"{done} of {len(missing)} trainings, {format_duration(left)} left", flush=True)


def has_diverged(training: Training) -> bool:
    """Whether it was stopped by a loss or gradient that was not finite."""
    return any(training.directory.glob("nonfinite_*"))


def record_of(training: Training) -> dict[str, Any]:
    """The training's run.json: ledger, flags, versions, commit."""
    return read_json(training.directory / "run.json", what="run record")


def held_out(training: Training, name: str = "loss") -> float:
    """A figure of a finished training's last evaluation; infinite where it was no number."""
    return number(read_json(training.directory / _RESULTS, what="results")[name])


def log_of(training: Training) -> list[dict[str, Any]]:
    """The lines of its log.jsonl so far."""
    from bert_tf.train.run_log import STEPS, read_history  # brings TensorFlow

    return read_history(training.directory, STEPS)


def number(value: float | None) -> float:
    """A logged figure, which is null where it was infinite or no number."""
    return math.inf if value is None else value


def _run(training: Training, may_diverge: bool) -> None:
    command, output = training.command(), training.output
    print(f"$ python {shlex.join(command)} > {output}", flush=True)
    status = run_script(command, output)
    if status and not (may_diverge and has_diverged(training)):
        raise UserError(
            f"{training.name} ended with status {status}; {output} says why. Start again to resume."
        )
    if not _has_ended(training, may_diverge):
        raise UserError(f"{training.name} ended before its last update; {output} says why.")


def _check_same_flags(training: Training) -> None:
    """Raises UserError where the directory holds a training with other flags."""
    if not (training.directory / "run.json").is_file():
        return
    recorded = record_of(training)["flags"]
    other = [name for name, value in training.flags.items() if recorded.get(name) != value]
    if other:
        raise UserError(
            f"--output_dir: {training.directory} holds a run with --{other[0]}="
            f"{recorded.get(other[0])} and not {training.flags[other[0]]}; remove it or give "
            "another --output_dir."
        )


def _has_ended(training: Training, may_diverge: bool) -> bool:
    if may_diverge and has_diverged(training):
        return True
    evaluated = (training.directory / _RESULTS).is_file()
    last = log_of(training)[-1:]
    return evaluated and bool(last) and last[0]["step"] == training.flags["num_train_steps"]
