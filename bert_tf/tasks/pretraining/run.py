"""Pre-training with masked LM and next-sentence prediction, or with another objective."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from bert_tf.config.settings import OptimizationSettings
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.model.config import BertConfig
from bert_tf.records.info import SENTENCE_ORDER, check_records, lengths_of
from bert_tf.records.layouts import PREDICTIONS, SEQUENCE
from bert_tf.tasks.pretraining.batches import Lengths, TrainingBatches, shared_lengths
from bert_tf.tasks.pretraining.data import OpenRecords, RunRecords, open_run_records
from bert_tf.tasks.pretraining.network import open_model
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.checks import check_model_files
from bert_tf.train.evaluation import LossEvaluation, Results
from bert_tf.train.execute import execute, prepare
from bert_tf.train.job import Job, JobData, RunModel
from bert_tf.train.run import Run, begin
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.digest import EVAL_DIGEST_KEY

if TYPE_CHECKING:
    from bert_tf.tasks.pretraining.distillation import MakeTargets


def run(settings: PretrainingSettings) -> Results | None:
    """Trains and evaluates as the settings say.

    Returns the last evaluation's results, None without ``do_eval``. Raises UserError for bad input.
    """
    with begin(settings.run, settings.runtime) as begun:
        if settings.before_training is not None:
            from bert_tf.tasks.pretraining.hosts import run_before_training

            run_before_training(settings, begun)
        return execute(prepare_pretraining(settings, begun))


def prepare_pretraining(settings: PretrainingSettings, run: Run) -> Job:
    """Opens records and network, chooses the arithmetic and checks everything. Collective.

    Writes nothing except local copies of the records, their lengths and the cache of the teacher's
    targets, and nothing at all in a dry run. Raises UserError.
    """
    job = prepare(open_pretraining(settings, run), run)
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
      make_targets: caches a teacher's soft targets of the training records; None without a cache.
    """

    settings: PretrainingSettings
    lengths: Lengths
    records: RunRecords
    model: RunModel
    make_targets: MakeTargets | None

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
        settings, records = self.settings, self._on_local_disk(run)
        training = evaluation = None
        if self.records.train is not None and records.train is not None:
            training = self._training(self.records.train, records.train, run, arithmetic)
        if records.held_out is not None:
            evaluation = self._evaluation(records.held_out, run)
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
    ) -> TrainingBatches:
        """What is trained on: ``given`` records, ``read`` from where they may be copies."""
        config, buckets = self.model.config, self.settings.data.length_buckets
        originals = self.records.for_network(given, config)
        records = self.records.for_network(read, config)
        return TrainingBatches(
            self.settings,
            config,
            records,
            given.record_set,
            *self.lengths,
            self.max_records,
            lengths=shared_lengths(originals, run) if buckets else None,
            targets=self.make_targets and self.make_targets(records, run, arithmetic),
        )

    def _evaluation(self, held_out: OpenRecords, run: Run) -> LossEvaluation:
        from bert_tf.input.evaluation import evaluation_dataset

        task, asked, ranks = self.model.evaluated or self.model.task, self.settings.run, run.ranks
        global_batch_size = asked.evaluation.eval_batch_size * ranks.world_size
        return LossEvaluation(
            functools.partial(
                evaluation_dataset,
                self.records.for_network(held_out, task.config),
                GlobalBatchSlice(global_batch_size, ranks.rank, ranks.world_size),
                seed=asked.seed,
            ),
            ranks=ranks,
            task=task,
            max_steps=asked.evaluation.max_eval_steps,
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
    lengths = _lengths(settings, run, records)
    distillation, of_network = settings.distillation, settings
    teacher = make_targets = None
    if distillation is not None and settings.run.do_train:
        from bert_tf.tasks.pretraining.distillation import open_student

        teacher, of_network = open_student(settings, distillation, run, records)
    has_order = SENTENCE_ORDER in records.pair_tasks
    model = open_model(of_network, run, records.vocabulary, sentence_order=has_order)
    _check_records(lengths, records, model.config)
    if settings.next_sentence and records.train and records.train.info.one_sided_labels:
        run.warn(records.train.info.one_sided_labels, part="records")
    if teacher is not None and distillation is not None:
        from bert_tf.tasks.pretraining.distillation import distilled

        model, make_targets = distilled(distillation, run, model, teacher)
    return OpenedPretraining(settings, lengths, records, model, make_targets)


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
