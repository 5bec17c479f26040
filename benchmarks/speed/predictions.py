"""Prediction by any subject: the batches that it is of, and how they are timed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from benchmarks.speed.batches import span_batch
from benchmarks.speed.load import ForeignLoad
from bert_tf.config.bert_config import BertConfig
from bert_tf.tasks.span_model import INPUTS


@dataclasses.dataclass(frozen=True)
class PredictionJob:
    """The batches that all subjects predict.

    Attributes:
      network: its sizes, with a span head.
      batch_sizes: sequences of a batch, one after the other.
      seq_length: tokens of a sequence, none of them padding.
      threads: cores to use.
      warmup: batches of a size before those that count.
      repetitions: batches of a size that count.
      google_bert_dir: a checkout of google-research/bert.
    """

    network: BertConfig
    batch_sizes: tuple[int, ...]
    seq_length: int
    threads: int
    warmup: int
    repetitions: int
    google_bert_dir: str | None = None

    @classmethod
    def from_json(cls, job: Mapping[str, Any]) -> PredictionJob:
        """Reads what ``dataclasses.asdict`` gave, among other keys."""
        values = {field.name: job[field.name] for field in dataclasses.fields(cls)}
        return cls(
            **{
                **values,
                "network": BertConfig(**job["network"]),
                "batch_sizes": tuple(job["batch_sizes"]),
            }
        )

    def batch(self, sequences: int) -> dict[str, np.ndarray]:
        """Features of so many sequences, the same in every process; int32 [sequences, S]."""
        made = span_batch(
            sequences, vocab_size=self.network.vocab_size, seq_length=self.seq_length, seed=1
        )
        return {name: made[name] for name in INPUTS}


def time_batches(
    job: PredictionJob, predict: Callable[[dict[str, np.ndarray]], object]
) -> dict[str, Any]:
    """Runs batches of each size, one at a time.

    Returns ``batch_seconds`` (a list for each of the job's sizes) and ``foreign_share``.
    """
    load = ForeignLoad()
    batch_seconds = []
    for size in job.batch_sizes:
        batch = job.batch(size)
        for _ in range(job.warmup):
            predict(batch)
        seconds = []
        for _ in range(job.repetitions):
            start = time.perf_counter()
            predict(batch)
            seconds.append(time.perf_counter() - start)
        batch_seconds.append(seconds)
    return {"batch_seconds": batch_seconds, "foreign_share": load.share()}
