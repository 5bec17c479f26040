"""A run that has begun, as everything that it does sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoint.run_record import RunRecord
from bert_tf.config.settings import RunSettings, RuntimeSettings
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.model import precision
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.training.run_log import RunLog
from bert_tf.training.start_point import StartPoint
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import Kernels
from bert_tf.watch.watch import NoWatch


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has begun: its ranks know each other and where they start.

    Attributes:
      settings, runtime: what the user asked for.
      ranks: all ranks.
      watch: over the other ranks.
      start: where training goes on.
      record: what the run that is resumed recorded at its last start, None where nothing did.
      hardware: what every rank can compute on; the number of GPUs is this rank's own.
      precision: name of the products' precision, where no file changes it; ``auto`` before
        :func:`bert_tf.training.run.choose_arithmetic`, which completes what follows too.
      policy: the type of each class of operation, and the form of the layers without a trial of
        XLA.
      kernels: the update's arithmetic, in one form on all ranks; None before.
      speed: what was measured for the choice, for the ledger; empty where nothing was.
      log: None on ranks other than 0.
      threads: what was measured for the choice of their number, as ``speed``.
    """

    settings: RunSettings
    runtime: RuntimeSettings
    ranks: SingleProcess
    watch: NoWatch
    start: StartPoint
    record: RunRecord | None
    hardware: precision.Hardware
    precision: str
    policy: precision.PrecisionPolicy
    kernels: Kernels | None
    speed: Mapping[str, Any]
    log: RunLog | None
    threads: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def keeps_files(self) -> bool:
        """Whether this rank is the one that writes what the run leaves behind."""
        return self.ranks.is_chief and not self.settings.dry_run

    def consumed_sequences(self, batch: BatchPlan) -> int:
        """Sequences that the run consumed before it starts here."""
        return self.start.consumed(batch.global_batch_size)

    def batch_slice(self, batch: BatchPlan) -> GlobalBatchSlice:
        """This rank's part of every global batch; they go on in the data where the run stopped."""
        consumed_here = self.start.data_position * batch.global_batch_size
        return GlobalBatchSlice(
            batch.global_batch_size,
            self.ranks.rank,
            self.ranks.world_size,
            origin=self.consumed_sequences(batch) - consumed_here,
        )

    def message(self, text: str) -> None:
        """Prints a line, once for all ranks."""
        if self.log is not None:
            self.log.message(text)
