"""The trainings compared by loss_curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.loss_curves_compare import Curve
from benchmarks.trainings import Training, held_out, log_of, number

# Name -> flags of run_pretraining.py in addition to the common ones. Add a row to add a variant.
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "allow_slow_fp16": True},
    "fp32-xla": {"precision": "fp32", "use_xla": True},
    "bf16-xla": {"precision": "bf16", "use_xla": True},
    "fp16-xla": {"precision": "fp16", "use_xla": True, "allow_slow_fp16": True},
    "fp32-tensorflow": {"precision": "fp32", "native_ops": False},
    "bf16-tensorflow": {"precision": "bf16", "native_ops": False},
}
REFERENCE = "fp32"


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


def read_curve(training: Training) -> Curve:
    """The curve logged by a finished training."""
    lines = log_of(training)
    return Curve(
        tuple(line["step"] for line in lines),
        tuple(number(line["loss"]) for line in lines),
        held_out(training),
    )


def skipped_updates(training: Training) -> int:
    """Updates skipped because of the loss scale; a resumed process counts from 0 again."""
    total, before = 0, 0
    for line in log_of(training):
        count = int(line.get("skipped_updates", 0))
        total += count - before if count >= before else count
        before = count
    return total
