"""The trainings that loss_curves compares: run_pretraining.py, one process after the other."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.loss_curves_compare import Curve
from benchmarks.speed.process import ROOT, as_flag, run_script
from bert_tf.errors import UserError
from bert_tf.files import read_json

# Name -> flags of run_pretraining.py in addition to the shared ones. A row more is a variant more.
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "allow_slow_fp16": True},
    "amp": {"amp": True},
    "fp32-xla": {"precision": "fp32", "use_xla": True},
    "bf16-xla": {"precision": "bf16", "use_xla": True},
    "fp16-xla": {"precision": "fp16", "use_xla": True, "allow_slow_fp16": True},
    "fp32-tensorflow": {"precision": "fp32", "native_ops": False},
    "bf16-tensorflow": {"precision": "bf16", "native_ops": False},
}
REFERENCE = "fp32"


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

    def command(self) -> list[str]:
        """The command, without the interpreter."""
        flags = {**self.flags, "output_dir": self.directory}
        return [str(ROOT / "run_pretraining.py"), *(as_flag(n, v) for n, v in flags.items())]


def plan_trainings(
    variants: Sequence[str], seeds: Sequence[int], shared: Mapping[str, Any], output_dir: Path
) -> list[Training]:
    """The reference with every seed, then each variant with the first one."""
    runs = [(REFERENCE, seed) for seed in seeds]
    runs += [(variant, seeds[0]) for variant in variants if variant != REFERENCE]
    return [
        Training(
            variant,
            seed,
            {**shared, **VARIANTS[variant], "seed": seed},
            output_dir / f"{variant}-seed{seed}",
        )
        for variant, seed in runs
    ]


def run_trainings(trainings: Sequence[Training]) -> None:
    """Runs what is not finished, one process at a time, each from where it stopped.

    Raises UserError for a directory that another training wrote, and for one that fails.
    """
    for training in trainings:
        _check_same_flags(training)
    for training in trainings:
        if _is_finished(training):
            print(f"{training.name}: finished before, in {training.directory}", flush=True)
            continue
        command, output = training.command(), training.directory.with_suffix(".txt")
        print(f"$ python {shlex.join(command)} > {output}", flush=True)
        status = run_script(command, output)
        if status:
            raise UserError(
                f"{training.name} ended with status {status}; {output} says why. Start "
                "again to resume."
            )
        if not _is_finished(training):
            raise UserError(f"{training.name} ended before its last update; {output} says why.")


def read_curve(training: Training) -> Curve:
    """What a finished training logged."""
    lines = _log(training)
    results = read_json(training.directory / "eval_results.json", what="results")
    return Curve(
        tuple(line["step"] for line in lines),
        tuple(_number(line["loss"]) for line in lines),
        _number(results["loss"]),
    )


def skipped_updates(training: Training) -> int:
    """Updates that the loss scale skipped; a resumed process counts from 0 again."""
    total, before = 0, 0
    for line in _log(training):
        count = int(line.get("skipped_updates", 0))
        total += count - before if count >= before else count
        before = count
    return total


def record_of(training: Training) -> dict[str, Any]:
    """The training's run.json: ledger, flags, versions, commit."""
    return read_json(training.directory / "run.json", what="run record")


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


def _is_finished(training: Training) -> bool:
    evaluated = (training.directory / "eval_results.json").is_file()
    last = _log(training)[-1:]
    return evaluated and bool(last) and last[0]["step"] == training.flags["num_train_steps"]


def _log(training: Training) -> list[dict[str, Any]]:
    from bert_tf.training.run_log import STEPS, read_history  # brings TensorFlow

    return read_history(training.directory, STEPS)


def _number(value: float | None) -> float:
    """A logged figure, which is null where it was infinite or no number."""
    return math.inf if value is None else value
