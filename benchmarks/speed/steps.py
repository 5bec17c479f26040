"""A training step of any subject: its definition, and how it is timed."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np
from absl import flags

from benchmarks.script import network_from_flags, threads_from_flags
from benchmarks.speed.batches import pretraining_batch, span_batch
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.subjects import BERT_BASE
from bert_tf.model.config import BertConfig

PRETRAINING, SPANS, DISTILLATION = "pretraining", "fine-tuning", "distillation"

Batch = dict[str, np.ndarray]
Step = Callable[[], float]
AnyJob = TypeVar("AnyJob", bound="Job")


class Recipe(NamedTuple):
    """The hyperparameters of all subjects; google-research/bert has the last two built in.

    Attributes:
      learning_rate: peak of a linear schedule.
      steps: updates of the whole training.
      warmup_steps: updates up to the peak.
      weight_decay: weight decay of matrices.
      clip_norm: maximum norm of the gradients.
    """

    learning_rate: float = 1e-4
    steps: int = 100_000
    warmup_steps: int = 10_000
    weight_decay: float = 0.01
    clip_norm: float = 1.0


RECIPE = Recipe()


@dataclasses.dataclass(frozen=True)
class Job:
    """The job of a subject's process, which receives it as JSON.

    Attributes:
      network: the architecture.
    """

    network: BertConfig

    @classmethod
    def from_json(cls: type[AnyJob], job: Mapping[str, Any]) -> AnyJob:
        """Reads the output of :meth:`to_json`, ignoring other keys."""
        values = {field.name: job[field.name] for field in dataclasses.fields(cls)}
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**{**values, "network": BertConfig(**job["network"])})

    def to_json(self) -> dict[str, Any]:
        """Converts the job to JSON for the subject's process."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class StepJob(Job):
    """The step that all subjects run.

    Attributes:
      task: ``PRETRAINING``, ``SPANS`` or ``DISTILLATION``, in which ``network`` is the teacher.
      batch_size: sequences per micro batch.
      seq_length: tokens per sequence.
      predictions: masked tokens per sequence, in pre-training.
      accumulation_steps: micro batches per update.
      threads: cores to use.
      warmup_steps: steps before the timed ones, at least 1.
      steps: timed steps.
      restrict_ce_to_mask: compare soft targets at masked tokens only.
    """

    task: str
    batch_size: int
    seq_length: int
    predictions: int = 0
    accumulation_steps: int = 1
    threads: int = 1
    warmup_steps: int = 1
    steps: int = 1
    restrict_ce_to_mask: bool = False

    @property
    def student(self) -> BertConfig:
        """The student of a distillation, with half of the layers."""
        layers = max(1, self.network.num_hidden_layers // 2)
        return dataclasses.replace(self.network, num_hidden_layers=layers)

    @classmethod
    def from_flags(cls, task: str, **fixed: Any) -> StepJob:
        """The step given by the flags; ``fixed`` attributes are not read from flags.

        Raises UserError if the sequences are longer than the network allows.
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name in flags.FLAGS]
        job = {name: flags.FLAGS[name].value for name in names}
        job["threads"] = threads_from_flags()
        return cls(**{**job, "network": network_from_flags(BERT_BASE), "task": task, **fixed})

    @property
    def sequences(self) -> int:
        """Number of sequences in one step."""
        return self.batch_size * self.accumulation_steps

    def batch(self, sequences: int, *, seed: int = 1) -> Batch:
        """Features of ``sequences`` sequences, the same in every process."""
        sizes = {"vocab_size": self.network.vocab_size, "seq_length": self.seq_length, "seed": seed}
        if self.task != SPANS:
            return pretraining_batch(sequences, predictions=self.predictions, **sizes)
        return span_batch(sequences, **sizes)

    def micro_batches(self) -> list[Batch]:
        """The features of a step, cut into micro batches."""
        whole = self.batch(self.sequences)
        starts = range(0, self.sequences, self.batch_size)
        return [{n: v[s : s + self.batch_size] for n, v in whole.items()} for s in starts]


def time_steps(job: StepJob, step: Step, *, started: float) -> dict[str, Any]:
    """Runs the warm-up and the timed steps.

    Args:
      job: the number of steps.
      step: runs one update; returns its loss.
      started: ``time.monotonic()`` when the process was started.

    Returns:
      ``seconds`` (the median step), ``first_step_seconds`` (from ``started`` to the end of the
      first step), ``loss`` (of the first step) and ``foreign_share``.
    """
    loss = step()
    first_step_seconds = time.monotonic() - started
    if not math.isfinite(loss):
        raise ArithmeticError(f"the first step's loss is {loss}")
    for _ in range(job.warmup_steps - 1):
        step()
    load = ForeignLoad()
    step_seconds = []
    for _ in range(job.steps):
        start = time.perf_counter()
        step()
        step_seconds.append(time.perf_counter() - start)
    return {
        "seconds": statistics.median(step_seconds),
        "first_step_seconds": first_step_seconds,
        "loss": loss,
        "foreign_share": load.share(),
    }
