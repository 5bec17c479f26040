"""Pre-training with masked LM and next-sentence prediction, or with another objective."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bert_tf.config.settings import OptimizationSettings
from bert_tf.model.config import BertConfig
from bert_tf.records.info import SENTENCE_ORDER, check_records
from bert_tf.records.layouts import PREDICTIONS, SEQUENCE
from bert_tf.tasks.pretraining.data import (
    OpenRecords,
    RunRecords,
    TrainingBatches,
    open_run_records,
)
from bert_tf.tasks.pretraining.network import open_model
from bert_tf.tasks.pretraining.objective import objective_of
from bert_tf.tasks.pretraining.settings import DataSettings, PretrainingSettings
from bert_tf.tasks.pretraining.training_order import report_lengths, training_order
from bert_tf.train.arithmetic import Arithmetic
from bert_tf.train.checks import check_model_files
from bert_tf.train.evaluation import Results
from bert_tf.train.execute import execute
from bert_tf.train.job import Job, JobData, RunModel, TrainingData, no_batches
from bert_tf.train.prepare import prepare
from bert_tf.train.run import Run, begin
from bert_tf.util.digest import EVAL_DIGEST_KEY

if TYPE_CHECKING:
    from bert_tf.input.mixture import Mixture
    from bert_tf.tasks.pretraining.distillation import MakeTargets


def run(settings: PretrainingSettings) -> Results | None:
    """Trains and evaluates as the settings say.

    Returns the last evaluation's results, None without ``do_eval``. Raises UserError for bad input.
    """
    with begin(settings.run, settings.runtime) as begun:
        if settings.before_training is not None:
            from bert_tf.tasks.pretraining.hosts import run_before_training

            run_before_training(settings, begun)
        return train_and_evaluate(prepare_pretraining(settings, begun))


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A run that has passed all checks; nothing has been written yet.

    Attributes:
      job: the job to run.
      flops: FLOPs of a sequence of given length, as defined in ``model.flops``.
      lengths: sequence lengths of typical batches; not meaningful with a length ramp.
      mixture: the sources of the training records, if these have weights.
    """

    job: Job
    flops: SequenceFlops
    lengths: Sequence[int]
    mixture: Mixture | None = None

    @property
    def flops_per_sequence(self) -> float:
        """FLOPs of a typical sequence; with a length ramp, of the longest."""
        return statistics.fmean(map(self.flops.of_length, self.lengths))

    def flops_of_updates(self, begin: int, end: int) -> float:
        """FLOPs of the updates at positions ``begin`` to ``end`` - 1."""
        parts = self.job.plan.batch.segments(begin, end)
        return self._sum((part.sequences, part.length) for part in parts)

    @property
    def total_flops(self) -> float:
        """FLOPs of the whole run."""
        plan = self.job.plan
        return self._sum(self.job.run.start.parts(plan.batch, plan.steps.last_step))

    def _sum(self, parts: Iterable[tuple[float, int | None]]) -> float:
        """FLOPs of (number of sequences, length) pairs; length None stands for typical ones."""
        typical, of_length = self.flops_per_sequence, self.flops.of_length
        return sum(number * (of_length(length) if length else typical) for number, length in parts)


@dataclasses.dataclass(frozen=True)
class SequenceFlops:
    """The floating-point operations of training on one sequence.

    Attributes:
      config: the network's configuration.
      settings: the objective, and the lengths of the records.
    """

    config: BertConfig
    settings: PretrainingSettings

    def of_length(self, length: int) -> float:
        """FLOPs of one sequence with ``length`` positions."""
        data = self.settings.data
        predictions = data.masks.max_predictions_per_seq
        if self.settings.optimization.length_ramp is not None:
            from bert_tf.input.cutting import cut_predictions

            predictions = cut_predictions(predictions, data.max_seq_length, length)
        objective = objective_of(self.settings)
        return objective.training_flops(self.config, length=length, predictions=predictions)


def train_and_evaluate(prepared: Prepared) -> Results | None:
    """Runs a prepared run, or only shows it in a dry run (see :func:`run`). Collective."""
    compute = {
        "model_flops_per_sequence": prepared.flops_per_sequence,
        "model_flops": prepared.total_flops,
    }
    if prepared.job.data.entries["length_buckets"]:
        compute["positions_per_sequence"] = statistics.fmean(prepared.lengths)
    sections, job = {"compute": compute}, prepared.job
    if prepared.mixture is not None:
        consumed = job.run.start.total(job.plan.batch, job.plan.steps.last_step)
        sections.update(prepared.mixture.ledger_sections(consumed))
    return execute(job, sections=sections)


def prepare_pretraining(settings: PretrainingSettings, run: Run) -> Prepared:
    """Opens records and network, chooses the arithmetic and checks everything. Collective.

    Writes nothing except local copies of the records, their lengths and the cache of the teacher's
    targets, and nothing at all in a dry run. Raises UserError.
    """
    opened = open_pretraining(settings, run)
    job = prepare(opened, run)
    lengths_of = job.data.training.typical_lengths
    lengths = [opened.max_seq_length] if lengths_of is None else lengths_of(run, job.plan)
    if job.data.entries["length_buckets"]:
        report_lengths(lengths, opened.max_seq_length, run)
    mixture = opened.records.train.mixture if opened.records.train else None
    return Prepared(job, SequenceFlops(opened.model.config, opened.settings), lengths, mixture)


@dataclasses.dataclass(frozen=True)
class OpenedPretraining:
    """A pre-training run with its records and network (see :class:`bert_tf.train.prepare.Opened`).

    Attributes:
      settings: what the user requested, completed with the lengths of the records.
      records: the records to read.
      model: the model to train.
      make_targets: caches a teacher's soft targets of the training records; None without a cache.
    """

    settings: PretrainingSettings
    records: RunRecords
    model: RunModel
    make_targets: MakeTargets | None

    is_padded = False

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""
        return self.settings.optimization

    @property
    def max_seq_length(self) -> int:
        """The length of a whole record."""
        return self.settings.data.max_seq_length

    @property
    def max_records(self) -> int:
        """The number of sequences in an epoch; 1 for a run that does not train."""
        train = self.records.train
        return train.epoch if train else 1

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Copies records to local disks, measures their lengths, caches the teacher's targets."""
        settings, records = self.settings, self._on_local_disk(run)
        training = TrainingData(no_batches, self.max_seq_length)
        if self.records.train is not None and records.train is not None:
            training = self._training(self.records.train, records.train, run, arithmetic)
        evaluation = None
        if records.held_out is not None:
            from bert_tf.tasks.pretraining.evaluation import loss_evaluation

            task = self.model.evaluated or self.model.task
            held_out = records.for_network(records.held_out, task.config)
            evaluation = loss_evaluation(settings, task, held_out, run.ranks)
        return JobData(
            training,
            evaluation,
            entries={
                **records.ledger_entries(self.model.vocabulary),
                "length_buckets": settings.run.do_train and settings.data.length_buckets,
            },
            names={EVAL_DIGEST_KEY: "held-out data"},
        )

    def _training(
        self, given: OpenRecords, read: OpenRecords, run: Run, arithmetic: Arithmetic
    ) -> TrainingData:
        """What is trained on: ``given`` records, ``read`` from where they may be copies."""
        data, records = self.settings.data, self.records.for_network(read, self.model.config)
        originals = self.records.for_network(given, self.model.config)
        order = training_order(self.settings, originals, run)
        batches = TrainingBatches(
            records,
            given.record_set,
            order,
            self.make_targets and self.make_targets(records, run, arithmetic),
            data.masks.masked_lm_prob,
            data.final_masked_lm_prob,
        )
        return TrainingData(
            batches.batches,
            self.max_seq_length,
            num_records=self.max_records,
            records=batches.records_at,
            typical_lengths=batches.typical_lengths,
        )

    def _on_local_disk(self, run: Run) -> RunRecords:
        """The records, copied to this host's disk if a training run asks for it. Collective."""
        data, records = self.settings.data, self.records
        if data.local_cache_dir is None or not run.settings.do_train or run.settings.dry_run:
            return records
        from bert_tf.tasks.pretraining.hosts import copy_to_local_disks

        opened = [records.train, records.held_out]
        sets = [None if one is None else one.record_set for one in opened]
        copies = copy_to_local_disks(sets, data.local_cache_dir, data.local_cache_gb, run)
        train, held_out = (
            None if one is None or copy is None else one._replace(record_set=copy)
            for one, copy in zip(opened, copies)
        )
        return dataclasses.replace(records, train=train, held_out=held_out)


def open_pretraining(settings: PretrainingSettings, run: Run) -> OpenedPretraining:
    """Opens records and network and checks that they match. Collective. Raises UserError."""
    check_model_files(run, settings.bert_config_file, settings.distillation)
    records = open_run_records(settings)
    data = _with_lengths_of_records(settings, run, records)
    distillation, of_network = settings.distillation, settings
    teacher = make_targets = None
    if distillation is not None and settings.run.do_train:
        from bert_tf.tasks.pretraining.distillation import open_student

        teacher, of_network = open_student(settings, distillation, run, records)
    objective = objective_of(settings)
    has_order = SENTENCE_ORDER in records.pair_tasks
    make_task = functools.partial(objective.task, sentence_order=has_order)
    model = open_model(of_network, run, records.vocabulary, make_task)
    model = dataclasses.replace(model, ledger=objective.ledger(model.config))
    _check_records(data, records, model.config)
    if settings.next_sentence and records.train and records.train.info.one_sided_labels:
        run.warn(records.train.info.one_sided_labels, part="records")
    if teacher is not None and distillation is not None:
        from bert_tf.tasks.pretraining.distillation import distilled

        model, make_targets = distilled(distillation, run, model, teacher)
    return OpenedPretraining(dataclasses.replace(settings, data=data), records, model, make_targets)


def _with_lengths_of_records(
    settings: PretrainingSettings, run: Run, records: RunRecords
) -> DataSettings:
    """The data settings, with the records' lengths where the user left the defaults."""
    data = settings.data
    lengths = {SEQUENCE: data.max_seq_length, PREDICTIONS: data.masks.max_predictions_per_seq}
    for name, value in records.lengths().items():
        # The length ramp was parsed with the default.
        is_fixed = name == "max_seq_length" and settings.optimization.length_ramp is not None
        if name not in settings.run.command.defaulted or is_fixed:
            continue
        if value != lengths[name]:
            lengths[name] = run.decide(name, value, "as in the records")
    masks = dataclasses.replace(data.masks, max_predictions_per_seq=lengths[PREDICTIONS])
    return dataclasses.replace(data, max_seq_length=lengths[SEQUENCE], masks=masks)


def _check_records(data: DataSettings, records: RunRecords, config: BertConfig) -> None:
    """Raises UserError for records that do not match the flags or the network."""
    for info in records.infos:
        check_records(
            info,
            max_seq_length=data.max_seq_length,
            max_predictions_per_seq=data.masks.max_predictions_per_seq,
            vocab_size=config.vocab_size,
        )
    records.check_positions(config)
