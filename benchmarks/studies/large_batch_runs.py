"""The trainings compared by large_batch, and their results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from benchmarks.trainings import Training, has_diverged, held_out
from bert_tf.util.errors import UserError

# Name -> flags of run_pretraining.py, and the learning rates tried with the small batch. Add a row
# to add an optimizer.
OPTIMIZERS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "adam": (
        {"optimizer_type": "adam", "adam_bias_correction": True},
        (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    ),
    "lamb": ({"optimizer_type": "lamb"}, (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2)),
    "nvlamb": (
        {"optimizer_type": "lamb", "lamb_prenormalize": True},
        (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2),
    ),
    "lans": ({"optimizer_type": "lans"}, (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2)),
    "muon": (
        {"optimizer_type": "muon", "adam_bias_correction": True},
        (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    ),
}

# Factor of the learning rate when the batch is multiplied by a factor.
SCALINGS: dict[str, Callable[[int], float]] = {
    "none": lambda _: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}

LOSS = "masked_lm_loss"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings common to all trainings.

    Attributes:
      flags: flags of run_pretraining.py.
      output_dir: contains a directory for each training.
      batch_size: sequences per update with the small batch.
      micro_batch_size: maximum sequences per micro batch.
      num_sequences: sequences in a whole training.
      warmup_sequences: sequences over which the rate rises.
    """

    flags: Mapping[str, Any]
    output_dir: Path
    batch_size: int
    micro_batch_size: int
    num_sequences: int
    warmup_sequences: int

    def check(self, factors: Sequence[int]) -> None:
        """Raises UserError for batches that do not divide into the length or into micro batches."""
        for factor in factors:
            batch = self.batch_size * factor
            if self.num_sequences % batch:
                raise UserError(
                    f"--num_sequences={self.num_sequences} is not a multiple of {batch}, the "
                    f"{factor}-fold batch; all trainings should see equally many sequences."
                )
            if batch % min(batch, self.micro_batch_size):
                raise UserError(
                    f"the {factor}-fold batch of {batch} sequences cannot be divided into micro "
                    f"batches of --micro_batch_size={self.micro_batch_size}."
                )

    def training(self, optimizer: str, factor: int, rate: float, seed: int) -> Training:
        """The training with a batch that is ``factor`` times the small one."""
        batch = self.batch_size * factor
        variant = f"{optimizer}-{factor}x-{rate:.4g}"
        flags = {
            **self.flags,
            **OPTIMIZERS[optimizer][0],
            "train_batch_size": min(batch, self.micro_batch_size),
            "global_batch_size": batch,
            "num_train_steps": self.num_sequences // batch,
            "num_warmup_steps": math.ceil(self.warmup_sequences / batch),
            "learning_rate": rate,
            "seed": seed,
        }
        return Training(variant, seed, flags, self.output_dir / f"{variant}-seed{seed}")


class Setting(NamedTuple):
    """What one cell of the table is about."""

    optimizer: str
    scaling: str
    factor: int


Found = Mapping[Setting, Sequence[Training]]


def sweep(
    plan: Plan, rates: Mapping[str, Sequence[float]], seed: int
) -> dict[str, dict[float, Training]]:
    """Trains the small batch with each optimizer's ``rates``, in ascending order."""
    return {
        optimizer: {rate: plan.training(optimizer, 1, rate, seed) for rate in sorted(set(values))}
        for optimizer, values in rates.items()
    }


def best_rate(optimizer: str, trained: Mapping[float, Training]) -> float:
    """The rate with the lowest held-out loss.

    Raises UserError if it is the first or last of several, since a better one may lie beyond it.
    """
    rates = list(trained)
    best = min(rates, key=lambda rate: final_loss(trained[rate]))
    if len(rates) > 1 and best in (rates[0], rates[-1]):
        which, wanted = ("lowest", "lower") if best == rates[0] else ("highest", "higher")
        raise UserError(
            f"--{optimizer}_learning_rates: {best:g} is the best of them, and the {which}; add a "
            f"{wanted} one. Finished trainings are kept."
        )
    return best


def compared(
    plan: Plan,
    base_rates: Mapping[str, float],
    scalings: Sequence[str],
    factors: Sequence[int],
    seeds: Sequence[int],
) -> dict[Setting, list[Training]]:
    """The trainings of each setting, one per seed.

    With the small batch, all scalings share the same trainings.
    """
    made: dict[tuple[str, int, float, int], Training] = {}
    found: dict[Setting, list[Training]] = {}
    for optimizer, base in base_rates.items():
        for scaling in scalings:
            for factor in factors:
                keys = [(optimizer, factor, base * SCALINGS[scaling](factor), s) for s in seeds]
                setting = Setting(optimizer, scaling, factor)
                found[setting] = [made.setdefault(k, plan.training(*k)) for k in keys]
    return found


def seed_by_seed(found: Found) -> Iterator[Training]:
    """Every training once, those of the first seed first."""
    of_seeds = zip(*found.values())
    yield from dict.fromkeys(training for trainings in of_seeds for training in trainings)


def final_loss(training: Training) -> float:
    """The held-out masked-LM loss; infinite if the training diverged."""
    return math.inf if has_diverged(training) else held_out(training, LOSS)


def losses_of(found: Found) -> dict[Setting, list[float]]:
    """The held-out losses of each setting's trainings."""
    return {setting: [final_loss(t) for t in trained] for setting, trained in found.items()}
