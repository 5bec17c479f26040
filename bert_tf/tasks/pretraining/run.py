"""Pre-training with masked LM and next-sentence prediction, or with another objective."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bert_tf.config.settings import OptimizationSettings
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import evaluation_dataset
from bert_tf.model.config import BertConfig
from bert_tf.records.info import SENTENCE_ORDER, check_records, lengths_of
from bert_tf.records.layouts import PREDICTIONS, SEQUENCE
from bert_tf.tasks.pretraining.data import (
    Lengths,
    OpenRecords,
    RunRecords,
    TrainingBatches,
    open_run_records,
    shared_lengths,
)
from bert_tf.tasks.pretraining.network import Inherited, open_model
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.checks import check_model_files
from bert_tf.train.evaluation import LossEvaluation, Results
from bert_tf.train.execute import execute, prepare
from bert_tf.train.job import Job, JobData, RunModel
from bert_tf.train.run import Run, begin
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.digest import EVAL_DIGEST_KEY

if TYPE_CHECKING:
    from bert_tf.tasks.distillation.teacher import Teacher
    from bert_tf.tasks.pretraining.task import ObjectiveTask


def run(settings: PretrainingSettings) -> Results | None:
    """Trains and evaluates as the settings say.

    Returns the last evaluation's results, None without ``do_eval``. Raises UserError for bad input.
    """
    with begin(settings.run, settings.runtime) as begun:
        run_before_training(settings, begun)
        return execute(prepare_pretraining(settings, begun))


def run_before_training(settings: PretrainingSettings, run: Run) -> None:
    """Runs --before_training, if given, once on each host; not in a dry run. Collective.

    Raises UserError on all ranks if the command fails on any host.
    """
    command = settings.before_training
    if command is None or settings.run.dry_run:
        return
    from bert_tf.ranks.host_work import on_each_host, run_command

    run.message(f"running on each host: {command}")
    on_each_host(run.ranks, lambda: run_command(command, flag="before_training"))


def prepare_pretraining(
    settings: PretrainingSettings, run: Run, inherited: Inherited | None = None
) -> Job:
    """Opens records and network, chooses the arithmetic and checks everything. Collective.

    Writes nothing except local copies of the records, their lengths and the cache of the teacher's
    targets, and nothing at all in a dry run. Raises UserError.
    """
    job = prepare(open_pretraining(settings, run, inherited), run)
    if isinstance(job.data.training, TrainingBatches):
        job.data.training.report_lengths(run, job.plan)
    return job


@dataclasses.dataclass(frozen=True)
class OpenedPretraining:
    """A pre-training run with its records and network (see :class:`bert_tf.train.execute.Opened`).

    Attributes:
      settings: what the user requested.
      lengths: the lengths of the records.
      records: the records to read.
      model: the model to train.
      teacher: the teacher; None without one, and without training.
    """

    settings: PretrainingSettings
    lengths: Lengths
    records: RunRecords
    model: RunModel
    teacher: Teacher | None

    is_padded = False

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""
        return self.settings.optimization

    @property
    def max_records(self) -> int:
        """The number of sequences in an epoch; 1 for a run that does not train."""
        train = self.records.train
        return train.epoch if train else 1

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Copies records to local disks, measures their lengths, caches the teacher's targets."""
        settings, data, records = self.settings, self.settings.data, self.records
        copies: dict[Path, Path] = {}
        if data.local_cache_dir is not None and settings.run.do_train and not run.settings.dry_run:
            copies = records.copied_to_local_disks(data.local_cache_dir, data.local_cache_gb, run)
        training = evaluation = None
        if records.train is not None:
            training = self._training(records.train, copies, run, arithmetic)
        if records.held_out is not None:
            evaluation = self._evaluation(records.held_out, copies, run)
        return JobData(
            training,
            evaluation,
            entries={
                **records.ledger_entries(self.model.vocabulary),
                "length_buckets": settings.run.do_train and data.length_buckets,
            },
            names={EVAL_DIGEST_KEY: "held-out data"},
        )

    def _training(
        self, given: OpenRecords, copies: Mapping[Path, Path], run: Run, arithmetic: Arithmetic
    ) -> TrainingBatches:
        task = cast("ObjectiveTask", self.model.evaluated or self.model.task)
        records = self.records.for_network(given, task.config, copies)
        lengths = targets = None
        if self.settings.data.length_buckets:
            lengths = shared_lengths(self.records.for_network(given, task.config), run)
        if self.teacher is not None:
            from bert_tf.tasks.pretraining.distillation import cached_targets

            read = self.records.for_network(given, self.teacher.config, copies)
            targets = cached_targets(self.model, self.teacher, read, run, arithmetic)
        return TrainingBatches(
            self.settings,
            task,
            records,
            given.record_set,
            *self.lengths,
            self.max_records,
            lengths=lengths,
            targets=targets,
        )

    def _evaluation(
        self, held_out: OpenRecords, copies: Mapping[Path, Path], run: Run
    ) -> LossEvaluation:
        task, asked, ranks = self.model.evaluated or self.model.task, self.settings.run, run.ranks
        global_batch_size = asked.evaluation.eval_batch_size * ranks.world_size
        return LossEvaluation(
            functools.partial(
                evaluation_dataset,
                self.records.for_network(held_out, task.config, copies),
                GlobalBatchSlice(global_batch_size, ranks.rank, ranks.world_size),
                seed=asked.seed,
            ),
            ranks=ranks,
            task=task,
            max_steps=asked.evaluation.max_eval_steps,
        )


def open_pretraining(
    settings: PretrainingSettings, run: Run, inherited: Inherited | None = None
) -> OpenedPretraining:
    """Opens records and network and checks that they match. Collective. Raises UserError."""
    check_model_files(run, settings.bert_config_file, settings.distillation)
    records = open_run_records(settings)
    lengths = _lengths(settings, run, records)
    distillation, teacher = settings.distillation, None
    if distillation is not None and settings.run.do_train:
        from bert_tf.tasks.pretraining.distillation import open_teacher_of, student_of

        teacher = open_teacher_of(distillation, run, records)
        inherited = inherited or student_of(distillation, teacher)
    has_order = SENTENCE_ORDER in records.pair_tasks
    model = open_model(settings, run, records.vocabulary, inherited, sentence_order=has_order)
    _check_records(lengths, records, model.config)
    if settings.next_sentence and records.train and records.train.info.one_sided_labels:
        run.warn(records.train.info.one_sided_labels, part="records")
    if teacher is not None and distillation is not None:
        from bert_tf.tasks.pretraining.distillation import distilled

        model = distilled(distillation, run, model, teacher)
    return OpenedPretraining(settings, lengths, records, model, teacher)


def _lengths(settings: PretrainingSettings, run: Run, records: RunRecords) -> Lengths:
    """The lengths that the user gave, or those of the records where defaults were left."""
    data = settings.data
    lengths = {SEQUENCE: data.max_seq_length, PREDICTIONS: data.masks.max_predictions_per_seq}
    for name, value in lengths_of(records.infos).items():
        # The length ramp was parsed with the default.
        is_fixed = name == "max_seq_length" and settings.optimization.length_ramp is not None
        if name not in settings.run.command.defaulted or is_fixed:
            continue
        if value != lengths[name]:
            lengths[name] = run.decide(name, value, "as in the records")
    return Lengths(lengths[SEQUENCE], lengths[PREDICTIONS])


def _check_records(lengths: Lengths, records: RunRecords, config: BertConfig) -> None:
    """Raises UserError for records that do not match the flags or the network."""
    for info in records.infos:
        check_records(
            info,
            max_seq_length=lengths.max_seq_length,
            max_predictions_per_seq=lengths.max_predictions,
            vocab_size=config.vocab_size,
        )
    records.check_positions(config)
