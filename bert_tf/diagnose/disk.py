"""The disk space of a run's checkpoints, estimated before the first is written."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

from bert_tf.checkpoint.directory import PREFIX
from bert_tf.model.variables import num_weights
from bert_tf.train.job import Job
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.optimizers.row import FLOAT32_BYTES

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class CheckpointSizes:
    """The sizes of a run's checkpoints in bytes.

    Attributes:
      one: one checkpoint: weights and optimizer slots.
      best: the best checkpoint: weights only; 0 if it is not kept.
      keep: number of checkpoints kept in addition to the best one.
      written: number of checkpoints that the run writes.
    """

    one: int
    best: int
    keep: int
    written: int

    @property
    def peak(self) -> int:
        """The peak disk usage: one checkpoint more than are kept, until the oldest is removed."""
        # Likewise, a new best checkpoint is completed before the previous one is removed.
        return min(self.written, self.keep + 1) * self.one + 2 * self.best

    def ledger_section(self) -> dict[str, object]:
        """The entries for the ledger."""
        kept = min(self.written, self.keep) * self.one + self.best
        sizes = {"gib_each": self.one, "gib_of_all_kept": kept}
        if self.best:
            sizes["gib_of_best"] = self.best
        return {
            "keep_checkpoint_max": self.keep,
            "checkpoints": self.written,
            **{name: float(_gib(size)) for name, size in sizes.items()},
        }


def checkpoint_sizes(job: Job) -> CheckpointSizes:
    """The sizes of the checkpoints that a job writes until its last step."""
    settings, start_step, last_step = job.settings, job.run.start.step, job.plan.last_step
    specs = job.task.specs()
    weights = FLOAT32_BYTES * num_weights([spec for spec in specs if spec.trainable])
    row, trained = optimizer_row(job.plan.requested.optimizer), job.plan.trained(specs)
    every = settings.save_checkpoints_steps
    written = 0
    if start_step < last_step:
        written = math.ceil(last_step / every) - start_step // every + (start_step == 0)
    keeps_best = settings.evaluation.keep_best and settings.evaluation.do_eval
    return CheckpointSizes(
        one=weights + row.slot_bytes(trained),
        best=weights * keeps_best,
        keep=settings.keep_checkpoint_max,
        written=written,
    )


def disk_warning(sizes: CheckpointSizes, output_dir: Path) -> str | None:
    """A sentence if the disk clearly lacks space for the checkpoints, else None."""
    existing = next(path for path in (output_dir, *output_dir.absolute().parents) if path.exists())
    try:
        free = shutil.disk_usage(existing).free
        replaceable = sum(path.stat().st_size for path in output_dir.glob(f"{PREFIX}-*"))
    except OSError:
        return None
    if sizes.peak <= free + replaceable:
        return None
    return (
        f"checkpoints take up to {_gib(sizes.peak)} GiB in {output_dir} ({_gib(sizes.one)} GiB "
        f"each), but only {_gib(free)} GiB is free; lower --keep_checkpoint_max or free some space"
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.3g}"
