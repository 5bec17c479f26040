"""Prediction by any subject: its batches, and how they are timed."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable

import numpy as np

from benchmarks.speed.batches import span_batch
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.steps import Batch, Job
from bert_tf.input.length_buckets import LengthSortedBatches
from bert_tf.model.config import INPUTS


@dataclasses.dataclass(frozen=True)
class PredictionJob(Job):
    """The batches that all subjects predict, with a span head.

    Attributes:
      batch_sizes: sequences per batch, measured one after another.
      seq_length: sequence length.
      lengths: token counts of real sequences; empty for full sequences.
      threads: cores to use.
      warmup: uncounted first batches of each size and length.
      repetitions: minimum number of counted batches per size; real data are always completed.
    """

    batch_sizes: tuple[int, ...]
    seq_length: int
    threads: int
    warmup: int
    repetitions: int
    lengths: tuple[int, ...] = ()

    def batches(self, size: int, *, by_length: bool) -> list[Batch]:
        """Batches of ``size`` sequences, the same in every process; int32 [size, S] each.

        One batch of full sequences or, with ``lengths``, all sequences, longest first.

        Args:
          size: sequences per batch.
          by_length: whether batches of real data are only as long as their longest sequence.
        """
        if not self.lengths:
            return [self._full(size)]
        lengths = np.array(self.lengths)
        order = LengthSortedBatches(
            lengths, batch_size=size, max_length=self.seq_length, rank=0, world_size=1
        )
        batches = []
        for number in range(order.num_batches):
            positions = order.padded_length(number) if by_length else self.seq_length
            tokens = lengths[order.indices(number), np.newaxis]
            mask = (np.arange(positions) < tokens).astype(np.int32)
            cut = {name: values[:, :positions] * mask for name, values in self._full(size).items()}
            batches.append(cut)
        return batches

    def _full(self, size: int) -> Batch:
        made = span_batch(
            size, vocab_size=self.network.vocab_size, seq_length=self.seq_length, seed=1
        )
        return {name: made[name] for name in INPUTS}


def time_batches(
    job: PredictionJob, predict: Callable[[Batch], object], *, by_length: bool = False
) -> dict[str, Any]:
    """Runs batches of each size, one at a time; ``by_length`` as in ``PredictionJob.batches``.

    Returns ``batch_seconds`` (a list for each of the job's sizes) and ``foreign_share``.
    """
    load = ForeignLoad()
    batch_seconds = []
    for size in job.batch_sizes:
        batches = job.batches(size, by_length=by_length)
        for batch in {b["input_ids"].shape[1]: b for b in batches}.values():
            for _ in range(job.warmup):
                predict(batch)
        seconds = []
        for batch in batches * math.ceil(job.repetitions / len(batches)):
            start = time.perf_counter()
            predict(batch)
            seconds.append(time.perf_counter() - start)
        batch_seconds.append(seconds)
    return {"batch_seconds": batch_seconds, "foreign_share": load.share()}
