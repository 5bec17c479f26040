"""What the checkpoints of a run take on the disk, worked out before the first is written."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from bert_tf.checkpoint.directory import PREFIX
from bert_tf.config.optimizers import optimizer_row
from bert_tf.config.settings import OptimizationSettings, RunSettings
from bert_tf.model.variables import VariableSpec, num_weights
from bert_tf.training.plans import trained_specs

_BYTES_OF_A_WEIGHT = 4
_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class CheckpointSizes:
    """Bytes of a run's checkpoints.

    Attributes:
      one: weights and the optimizer's slots.
      best: weights alone; 0 where the best one is not kept.
      keep: how many are kept beside it.
      written: how many the run writes.
    """

    one: int
    best: int
    keep: int
    written: int

    @property
    def most(self) -> int:
        """All that lies there at once: one more than are kept, until the oldest is removed."""
        # So is a new best one complete before the one before is removed.
        return min(self.written, self.keep + 1) * self.one + 2 * self.best

    def facts(self) -> dict[str, object]:
        """The ledger's section."""
        kept = min(self.written, self.keep) * self.one + self.best
        sizes = {"gib_each": self.one, "gib_of_all_kept": kept}
        if self.best:
            sizes["gib_of_best"] = self.best
        return {
            "keep_checkpoint_max": self.keep,
            "checkpoints": self.written,
            **{name: float(_gib(size)) for name, size in sizes.items()},
        }


def checkpoint_sizes(
    specs: Sequence[VariableSpec],
    settings: RunSettings,
    optimization: OptimizationSettings,
    *,
    start_step: int,
    last_step: int,
) -> CheckpointSizes:
    """Those of a training of the variables ``specs`` from ``start_step`` to ``last_step``.

    ``settings`` say how often it saves, and how many it keeps.
    """
    saved = [spec for spec in specs if spec.trainable]
    weights = _BYTES_OF_A_WEIGHT * num_weights(saved)
    trained = num_weights(trained_specs(specs, optimization))
    every = settings.save_checkpoints_steps
    at_start = start_step == 0
    written = 0
    if start_step < last_step:
        written = math.ceil(last_step / every) - start_step // every + at_start
    keeps_best = settings.keep_best and settings.do_eval
    return CheckpointSizes(
        one=weights + optimizer_row(optimization.optimizer).slot_bytes(trained),
        best=weights * keeps_best,
        keep=settings.keep_checkpoint_max,
        written=written,
    )


def disk_warning(sizes: CheckpointSizes, output_dir: Path) -> str | None:
    """A sentence where the disk has clearly too little room for the checkpoints, else None."""
    existing = next(path for path in (output_dir, *output_dir.absolute().parents) if path.exists())
    try:
        free = shutil.disk_usage(existing).free
        there = sum(path.stat().st_size for path in output_dir.glob(f"{PREFIX}-*"))
    except OSError:
        return None
    if sizes.most <= free + there:
        return None
    return (
        f"checkpoints take up to {_gib(sizes.most)} GiB in {output_dir} ({_gib(sizes.one)} each), "
        f"and {_gib(free)} are free there; lower --keep_checkpoint_max, or free space"
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.3g}"
