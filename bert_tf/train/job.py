"""Jobs: a training run or an evaluation with all its parameters resolved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.label_file import Labels
from bert_tf.checkpoint.model_files import write_model_files
from bert_tf.config.settings import OptimizationSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Task
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.train.context import RunContext
from bert_tf.train.evaluation import Evaluation
from bert_tf.train.plans import resolve_plans
from bert_tf.tuning.session import SessionSettings
from bert_tf.update.batch_plan import BatchPlan, StepPlan


@dataclasses.dataclass(frozen=True)
class Model:
    """What a run trains or evaluates, and how its output directory describes it.

    Attributes:
      task: the task, with the architecture.
      vocabulary: the vocabulary of the data; None if unknown.
      tokenizer_files: the vocabulary's file and whether text is lower-cased, to be stored with the
        model.
      frozen: prefix of a frozen network -> the checkpoint with its weights.
      evaluated: the task of evaluations and predictions, if it is a part of what is trained.
      initial_layers: the layers of the initial checkpoint, from 0, that the network's layers start
        from; None for all.
      ledger: further sections of the run's ledger.
      labels: of a head for words, by number, to be stored with the model.
    """

    task: Task
    vocabulary: Vocabulary | None
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    frozen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    evaluated: Task | None = None
    initial_layers: Sequence[int] | None = None
    ledger: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    labels: Labels | None = None

    @property
    def config(self) -> BertConfig:
        """The architecture."""
        return self.task.config

    def write_files(self, directory: Path) -> None:
        """Writes configuration, vocabulary and labels, which make it a model directory."""
        write_model_files(directory, self.config, self.tokenizer_files, self.labels)


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What a job trains on.

    Attributes:
      batches: returns this rank's part of every global batch of a plan, from ``context.start`` on.
      max_seq_length: positions in the longest sequence.
      records: returns the file and the number in it of each record of this rank's part of the
        global batch at a position; None if they are unknown.
      counted_in_epochs: whether the length of training was given in epochs. It is then an amount of
        data, so a run resumed with a different global batch needs a different number of steps; and
        messages advise to raise the number of epochs.
    """

    batches: Callable[[RunContext, BatchPlan], tf.data.Dataset]
    max_seq_length: int
    counted_in_epochs: bool = False
    records: Callable[[RunContext, BatchPlan, int], list[tuple[str, int]]] | None = None


@dataclasses.dataclass(frozen=True)
class Job:
    """What the trainer does.

    Attributes:
      context: the run that the job is part of.
      model: what is trained or evaluated.
      evaluation: how it is evaluated, None for a job that only trains.
      data: what it is trained on.
      optimization: the settings, with ``scale_steps_by_ranks`` resolved.
      batch, steps: the resolved arithmetic.
      options: how the network is computed.
      session: how sessions execute.
    """

    context: RunContext
    model: Model
    evaluation: Evaluation | None
    data: TrainingData
    optimization: OptimizationSettings
    batch: BatchPlan
    steps: StepPlan
    options: ForwardOptions
    session: SessionSettings

    @property
    def task(self) -> Task:
        """The model's task."""
        return self.model.task

    @property
    def length_flag(self) -> str:
        """The flag that makes training longer, for messages."""
        if self.steps.stop_after_steps is not None:
            return "--stop_after_steps"
        return "--num_train_epochs" if self.data.counted_in_epochs else "--num_train_steps"

    def at_full_size(self) -> Job:
        """The same job without ramps of its batches, to measure its largest updates."""
        return dataclasses.replace(self, batch=self.batch.at_full_size())

    def train_input(self) -> tf.data.Dataset:
        """The batches of this rank."""
        return self.data.batches(self.context, self.batch)

    def with_xla(self) -> Job:
        """The same job with XLA, and with layers that XLA can compile."""
        return dataclasses.replace(
            self,
            options=dataclasses.replace(self.options, native_layers=False),
            session=dataclasses.replace(self.session, use_xla=True),
        )


def make_job(
    context: RunContext,
    model: Model,
    *,
    data: TrainingData,
    evaluation: Evaluation | None,
    optimization: OptimizationSettings,
    skip_padding: bool = False,
) -> Job:
    """The job of a run.

    ``optimization`` has been through ``checks.settle_scaling``; ``skip_padding`` is for batches
    that may be padded. Raises UserError for contradictory batch sizes and steps.
    """
    batch, steps = resolve_plans(optimization, context.ranks, trains=context.settings.do_train)
    if data.counted_in_epochs or optimization.scale_steps_by_ranks:
        steps = steps.resumed(
            data_position=context.start.data_position,
            consumed_sequences=context.consumed_sequences(batch),
            batch=batch,
        )
        batch = dataclasses.replace(batch, offset=steps.schedule_offset)
    return Job(
        context=context,
        model=model,
        evaluation=evaluation,
        data=data,
        optimization=optimization,
        batch=batch,
        steps=steps,
        options=dataclasses.replace(context.options, skip_padding=skip_padding),
        session=context.session_settings(),
    )
