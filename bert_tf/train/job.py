"""Jobs: a run with its plan, its model and its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import OptimizationSettings, RunSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.task import Task
from bert_tf.model_directory.labels import Labels
from bert_tf.model_directory.text_classes import TextClasses
from bert_tf.model_directory.writing import write_model_files
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.train.evaluation import Evaluation
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run


class InitialWeights(NamedTuple):
    """The weights that a new run starts from.

    Attributes:
      checkpoint: None for random ones.
      layers: the checkpoint's layers, from 0, that the network's layers start from; None for all.
    """

    checkpoint: str | None = None
    layers: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class RunModel:
    """What a run trains or evaluates, and how its output directory describes it.

    Attributes:
      task: the task, with the architecture.
      vocabulary: the vocabulary of the data; None if unknown.
      tokenizer_files: the vocabulary's file and whether text is lower-cased, to be stored with the
        model.
      initial: the weights that it starts from, unless the run resumes.
      frozen: prefix of a frozen network -> the checkpoint with its weights.
      evaluated: the task of evaluations and predictions, if it is a part of what is trained.
      ledger: further sections of the run's ledger.
      labels: of a head for words, by number, to be stored with the model.
      text_classes: of a head for texts, likewise.
    """

    task: Task
    vocabulary: Vocabulary | None
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    initial: InitialWeights = dataclasses.field(default_factory=InitialWeights)
    frozen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    evaluated: Task | None = None
    ledger: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    labels: Labels | None = None
    text_classes: TextClasses | None = None

    @property
    def config(self) -> BertConfig:
        """The architecture."""
        return self.task.config

    def write_files(self, directory: Path) -> None:
        """Writes configuration, vocabulary and labels, which make it a model directory."""
        write_model_files(
            directory, self.config, self.tokenizer_files, self.labels, self.text_classes
        )


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What a job trains on.

    Attributes:
      batches: returns this rank's part of every global batch of a plan, from the run's start on.
      max_seq_length: positions in the longest sequence.
      num_records: the training records; 1 for a run that does not train.
      records: returns the file and the number in it of each record of this rank's part of the
        global batch at a position; None if they are unknown.
      typical_lengths: returns the positions of a sequence in typical batches of a plan; None if
        they are always ``max_seq_length``.
    """

    batches: Callable[[Run, Plan], tf.data.Dataset]
    max_seq_length: int
    num_records: int = 1
    records: Callable[[Run, Plan, int], list[tuple[str, int]]] | None = None
    typical_lengths: Callable[[Run, Plan], Sequence[int]] | None = None


@dataclasses.dataclass(frozen=True)
class JobData:
    """The data of a job, opened.

    Attributes:
      training: what it trains on.
      evaluation: how it is evaluated, None for a job that only trains.
      entries: the ledger's section on the data, including ``train_records``, ``sha256`` and
        ``vocabulary_sha256``; must be equal on all ranks.
      names: names, for messages, of task-specific entries.
      lists: JSON files to write to the output directory, name to content.
      prediction: what is predicted once with the last weights; None for nothing.
    """

    training: TrainingData
    evaluation: Evaluation | None
    entries: Mapping[str, Any]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lists: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    prediction: Evaluation | None = None


@dataclasses.dataclass(frozen=True)
class Job:
    """What the trainer does.

    Attributes:
      run: the run that the job is part of.
      plan: all that was decided about its updates.
      model: what is trained or evaluated.
      data: what it is trained and evaluated on.
      optimization: what the user requested.
    """

    run: Run
    plan: Plan
    model: RunModel
    data: JobData
    optimization: OptimizationSettings

    @property
    def settings(self) -> RunSettings:
        """What the run does."""
        return self.run.settings

    @property
    def task(self) -> Task:
        """The model's task."""
        return self.model.task

    @property
    def length_flag(self) -> str:
        """The flag that makes training longer, for messages."""
        if self.plan.steps.stop_after_steps is not None:
            return "--stop_after_steps"
        return (
            "--num_train_epochs" if self.optimization.steps.counts_epochs else "--num_train_steps"
        )

    def with_plan(self, plan: Plan) -> Job:
        """The same job with another plan."""
        return dataclasses.replace(self, plan=plan)

    def train_input(self) -> tf.data.Dataset:
        """The batches of this rank."""
        return self.data.training.batches(self.run, self.plan)
