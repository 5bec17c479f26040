"""Jobs: a run with its plan, its model and its data."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import RunSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.task import Task
from bert_tf.model_directory.record import record_of, write_model_files, write_record
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.train.evaluation import Evaluation
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.digest import EVAL_DIGEST_KEY, PREDICT_DIGEST_KEY

if TYPE_CHECKING:
    from bert_tf.model_directory.classes import Classes


class InitialWeights(NamedTuple):
    """The weights that a new run starts from.

    Attributes:
      checkpoint: None for random weights.
      layers: the checkpoint's layers, from 0, to start the network's layers from; None for all.
    """

    checkpoint: str | None = None
    layers: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class RunModel:
    """What a run trains or evaluates, and how its output directory describes it.

    Attributes:
      task: the task, with the architecture.
      vocabulary: the vocabulary of the data; None if unknown.
      tokenizer_files: the vocabulary file and whether text is lower-cased, to be stored with the
        model.
      initial: the weights to start from, unless the run resumes.
      frozen: prefix of a frozen network -> the checkpoint with its weights.
      evaluated: the task for evaluations and predictions, if it is only a part of the trained one.
      ledger: additional sections of the run's ledger.
      classes: what the outputs of a classification head mean, to be stored with it.
      kept: flag -> value of the settings that decide predictions, likewise.
      chosen_on: the records on which thresholds of the classes were chosen, likewise.
    """

    task: Task
    vocabulary: Vocabulary | None
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    initial: InitialWeights = dataclasses.field(default_factory=InitialWeights)
    frozen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    evaluated: Task | None = None
    ledger: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    classes: Classes | None = None
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chosen_on: str | None = None

    @property
    def config(self) -> BertConfig:
        """The architecture."""
        return self.task.config

    def write_files(self, directory: Path, precision: Mapping[str, Any]) -> None:
        """Writes configuration, vocabulary and record, which make up a model directory.

        ``precision`` is stored with a model whose settings are.
        """
        write_model_files(directory, self.config, self.tokenizer_files, **self._facts(precision))

    def write_record(self, directory: Path, precision: Mapping[str, Any]) -> None:
        """Writes the record alone, of a model whose other files are there."""
        facts = self._facts(precision)
        write_record(record_of(directory, self.config, self.tokenizer_files, **facts))

    def _facts(self, precision: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "classes": self.classes,
            "settings": {**self.kept, **precision} if self.kept else {},
            "chosen_on": self.chosen_on,
            "vocabulary_digest": self.vocabulary and self.vocabulary.digest,
        }


class TrainingData(abc.ABC):
    """The training data of a job.

    Attributes:
      max_seq_length: the length of the longest sequence.
      num_records: the number of training records.
    """

    max_seq_length: int
    num_records: int

    @property
    def most_tokens(self) -> int:
        """An upper bound on the number of tokens of a record."""
        return self.max_seq_length

    @abc.abstractmethod
    def batches(self, run: Run, plan: Plan) -> tf.data.Dataset:
        """This rank's part of every global batch of a plan, from the run's start."""

    def records_at(self, run: Run, plan: Plan, position: int) -> list[tuple[str, int]]:
        """The records of this rank's part of the global batch at a position; none if unknown.

        Each is a file and an index in it.
        """
        del run, plan, position
        return []

    def ledger_sections(self, run: Run, plan: Plan) -> Mapping[str, Mapping[str, Any]]:
        """Additional sections of the run's ledger."""
        del run, plan
        return {}


@dataclasses.dataclass(frozen=True)
class JobData:
    """The opened data of a job.

    Attributes:
      training: the training data; None for a job that does not train.
      evaluation: the evaluation; None for a job that only trains.
      entries: the ledger's section on the data, including ``train_records``, ``digest`` and
        ``vocabulary_digest``; must be equal on all ranks.
      names: names, for messages, of task-specific entries.
      lists: JSON files to write to the output directory: name to content.
      prediction: predictions to make once with the last weights; None for none.
    """

    training: TrainingData | None
    evaluation: Evaluation | None
    entries: Mapping[str, Any]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lists: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    prediction: Evaluation | None = None


@dataclasses.dataclass(frozen=True)
class Job:
    """All that the trainer needs.

    Attributes:
      run: the run that the job belongs to.
      plan: its batches, steps and learning rate.
      arithmetic: how it is computed.
      model: the model to train or evaluate.
      data: the data for training and evaluation.
    """

    run: Run
    plan: Plan
    arithmetic: Arithmetic
    model: RunModel
    data: JobData

    @property
    def settings(self) -> RunSettings:
        """The settings of the run."""
        return self.run.settings

    @property
    def task(self) -> Task:
        """The model's task."""
        return self.model.task

    @property
    def is_new(self) -> bool:
        """Whether it starts from random weights."""
        return not (self.run.start.checkpoint or self.model.initial.checkpoint)

    @property
    def evaluated_data(self) -> str | None:
        """The digest of the data that are evaluated; None if it is unknown."""
        digests = map(self.data.entries.get, (EVAL_DIGEST_KEY, PREDICT_DIGEST_KEY))
        return next((digest for digest in digests if digest not in (None, "none")), None)

    @property
    def training(self) -> TrainingData:
        """The training data of a job that trains."""
        assert self.data.training is not None, "this job does not train"
        return self.data.training

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation of a job that evaluates."""
        assert self.data.evaluation is not None, "this job is not evaluated"
        return self.data.evaluation

    def with_batch(self, batch: BatchPlan) -> Job:
        """The same job with other batches."""
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, batch=batch))

    def train_input(self) -> tf.data.Dataset:
        """This rank's batches."""
        return self.training.batches(self.run, self.plan)
