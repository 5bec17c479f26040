"""Runs the trainings to compare: run_pretraining.py, one process at a time."""

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
    """One training and its directory.

    Attributes:
      variant: its name.
      seed: seed of weights, data order, masks and dropout.
      flags: the given flags of run_pretraining.py, name to value.
      directory: its --output_dir; its output is redirected to a file next to it.
    """

    variant: str
    seed: int
    flags: Mapping[str, Any]
    directory: Path

    @property
    def name(self) -> str:
        """The variant and the seed, in words."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def output(self) -> Path:
        """The file with its output."""
        return self.directory.with_name(f"{self.directory.name}.txt")

    def command(self) -> list[str]:
        """The command, without the interpreter."""
        return script_command("run_pretraining.py", {**self.flags, "output_dir": self.directory})


def run_trainings(trainings: Sequence[Training], *, may_diverge: bool = False) -> None:
    """Runs unfinished trainings, one process at a time, each from where it stopped.

    Args:
      trainings: in the order in which they run.
      may_diverge: whether a training that stops at a non-finite loss or gradient is finished.

    Raises UserError if another training wrote a directory, or if a training fails.
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
    """Whether it was stopped by a non-finite loss or gradient."""
    return any(training.directory.glob("nonfinite_*"))


def record_of(training: Training) -> dict[str, Any]:
    """The training's run.json: ledger, flags, versions, commit."""
    return read_json(training.directory / "run.json", what="run record")


def held_out(training: Training, name: str = "loss") -> float:
    """A metric of a finished training's last evaluation; infinite if it was not finite."""
    return number(read_json(training.directory / _RESULTS, what="results")[name])


def log_of(training: Training) -> list[dict[str, Any]]:
    """The current lines of its log.jsonl."""
    from bert_tf.train.run_log import STEPS, read_history  # loads TensorFlow

    return read_history(training.directory, STEPS)


def number(value: float | None) -> float:
    """A logged value, which is null if it was not finite."""
    return math.inf if value is None else value


def _run(training: Training, may_diverge: bool) -> None:
    command, output = training.command(), training.output
    print(f"$ python {shlex.join(command)} > {output}", flush=True)
    status = run_script(command, output)
    if status and not (may_diverge and has_diverged(training)):
        raise UserError(
            f"{training.name} ended with status {status}; see {output}. Start again to resume."
        )
    if not _has_ended(training, may_diverge):
        raise UserError(f"{training.name} ended before its last update; see {output}.")


def _check_same_flags(training: Training) -> None:
    """Raises UserError if the directory contains a training with other flags."""
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
