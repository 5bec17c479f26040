"""Pre-training with masked LM and next-sentence prediction."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import DataSettings, PretrainingSettings
from bert_tf.input import pipeline
from bert_tf.input.cutting import cut_predictions
from bert_tf.input.masking import MaskingSettings, MaskShares
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.model.config import BertConfig
from bert_tf.model.flops import training_flops
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.records.info import SENTENCE_ORDER, RecordVocabulary, lengths_of
from bert_tf.records.manifest import require_listed_files
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.distillation.kept_targets import TargetSource, make_targets
from bert_tf.tasks.distillation.teacher import (
    Teacher,
    check_vocabulary,
    open_teacher,
    student_config,
    with_teacher,
)
from bert_tf.tasks.pretraining.hosts import copy_to_local_disks, run_before_training
from bert_tf.tasks.pretraining.network import find_model
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.pretraining.training_order import report_lengths, training_order
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.train.checks import check_start, settle_scaling
from bert_tf.train.context import RunContext, begin_run, choose_arithmetic
from bert_tf.train.evaluation import LossEvaluation, Results
from bert_tf.train.job import Job, Model, TrainingData, make_job
from bert_tf.train.plans import resolve_plans, with_steps
from bert_tf.train.run import run_job
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files


def run(settings: PretrainingSettings) -> Results | None:
    """Trains and evaluates according to the settings.

    Returns the last evaluation's results, None without ``do_eval``. Raises UserError for bad input.
    """
    with begin_run(settings.run, settings.runtime) as context:
        run_before_training(settings, context)
        return train_and_evaluate(prepare(settings, context))


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A run all of whose checks have passed, before anything is written.

    Attributes:
      job: what to run.
      train_data: the ledger's section on the data.
      flops: of a sequence of a length, as defined in ``model.flops``.
      lengths: the positions of a sequence in typical batches; not with a ramp.
    """

    job: Job
    train_data: Mapping[str, object]
    flops: Callable[[int], float]
    lengths: Sequence[int]

    @property
    def flops_per_sequence(self) -> float:
        """FLOPs of a typical sequence; with a ramp of lengths, of the longest."""
        return statistics.fmean(map(self.flops, self.lengths))

    def flops_of_updates(self, begin: int, end: int) -> float:
        """FLOPs of the updates at positions ``begin`` to ``end`` - 1."""
        parts = self.job.batch.segments(begin, end)
        return self._sum((part.sequences, part.length) for part in parts)

    @property
    def total_flops(self) -> float:
        """FLOPs of the whole run."""
        job = self.job
        return self._sum(job.context.start.parts(job.batch, job.steps.last_step))

    def _sum(self, parts: Iterable[tuple[float, int | None]]) -> float:
        """FLOPs of numbers of sequences of a length; None for typical ones."""
        typical = self.flops_per_sequence
        return sum(number * (self.flops(length) if length else typical) for number, length in parts)


def train_and_evaluate(prepared: Prepared) -> Results | None:
    """Runs what was prepared, or only shows it in a dry run; see :func:`run`. Collective."""
    compute = {
        "model_flops_per_sequence": prepared.flops_per_sequence,
        "model_flops": prepared.total_flops,
    }
    if prepared.train_data["length_buckets"]:
        compute["positions_per_sequence"] = statistics.fmean(prepared.lengths)
    model = prepared.job.model
    model = dataclasses.replace(model, ledger={**model.ledger, "compute": compute})
    return run_job(
        dataclasses.replace(prepared.job, model=model),
        train_data=prepared.train_data,
        data_names={"eval_sha256": "held-out data"},
    )


def prepare(settings: PretrainingSettings, context: RunContext) -> Prepared:
    """Opens records and network, chooses the arithmetic and checks everything. Collective.

    Only local copies of the records, their lengths and a cache of the teacher's targets are
    written, and not in a dry run. Raises UserError.
    """
    data = _open_data(settings)
    settings, context = _follow_records(settings, context, data)
    optimization = with_steps(
        settle_scaling(context, settings.optimization),
        context.ranks,
        records=len(data.train_records) if data.train_records else 1,
        epochs=settings.num_train_epochs,
        warmup_proportion=settings.warmup_proportion,
        trains=settings.run.do_train,
    )
    _, steps = resolve_plans(optimization, context.ranks, trains=settings.run.do_train)
    teacher = None
    if settings.distillation is not None and settings.run.do_train:
        teacher = open_teacher(settings.distillation, context)
        data.check_positions(teacher.config, f"the teacher, {teacher.path},")
        settings = _with_students_network(settings, teacher, context, data.vocabulary)
    found = find_model(settings, context, data.vocabulary)
    config = found.config
    for note in found.notes:
        context.message(note)
    _check_data(settings, data, config)
    if settings.next_sentence and data.train_info is not None and data.train_info.one_sided_labels:
        context.message(f"warning: {data.train_info.one_sided_labels}")
    context = choose_arithmetic(
        context, config, settings.optimization, max_seq_length=settings.data.max_seq_length
    )
    task = PretrainingTask(
        config,
        settings.masked_lm,
        settings.next_sentence,
        sentence_order=SENTENCE_ORDER in data.pair_tasks,
    )
    model = Model(task, found.vocabulary, tokenizer_files=found.tokenizer_files)
    if teacher is not None:
        context, model = _with_teacher(settings, context, model, teacher)
    check_start(context, model, optimization)
    originals, data = data, _on_local_disk(settings, data, context)
    order = training_order(
        settings, originals.for_training(config) if settings.run.do_train else None, context
    )
    targets = None
    if teacher is not None and settings.distillation.teacher_cache:
        source = TargetSource(model.task, teacher, data.for_training(teacher.config))
        targets = make_targets(source, settings.distillation.teacher_cache, context)

    def shares(offset: int) -> MaskShares | None:
        first, last = settings.data.masked_lm_prob, settings.data.final_masked_lm_prob
        if last is None:
            return None
        return MaskShares(first, last, steps.num_train_steps, offset)

    def train_input(context: RunContext, batch: BatchPlan) -> tf.data.Dataset:
        part = context.batch_slice(batch)
        batches = pipeline.training_dataset(
            data.for_training(config),
            part,
            start_position=context.start.data_position,
            seed=settings.run.seed,
            lengths=batch.length_ramp(),
            shares=shares(batch.offset),
            buckets=order.buckets(part),
        )
        if targets is None:
            return batches
        return targets.joined_to(
            batches,
            order.records_at(part),
            batch_size=part.constant_size,
            start_position=context.start.data_position,
        )

    def train_records(
        context: RunContext, batch: BatchPlan, position: int
    ) -> list[tuple[str, int]]:
        indices = order.records_at(context.batch_slice(batch))(position)
        return originals.train_records.locations(indices.tolist())

    def flops(length: int) -> float:
        predictions = settings.data.max_predictions_per_seq if settings.masked_lm else 0
        if optimization.length_ramp is not None:
            predictions = cut_predictions(predictions, settings.data.max_seq_length, length)
        return training_flops(
            config,
            length=length,
            predictions=predictions,
            next_sentence=settings.next_sentence,
        )

    job = make_job(
        context,
        model,
        data=TrainingData(
            train_input,
            records=train_records,
            max_seq_length=settings.data.max_seq_length,
            counted_in_epochs=settings.num_train_epochs is not None,
        ),
        evaluation=_evaluation(settings, task, data, context.ranks),
        optimization=optimization,
    )
    lengths = order.typical_lengths(context.batch_slice(job.batch))
    if order.lengths is not None:
        report_lengths(lengths, settings.data.max_seq_length, context)
    train_data = {
        **data.ledger_entries(found.vocabulary_sha256),
        "length_buckets": order.lengths is not None,
    }
    return Prepared(job, train_data, flops, lengths)


def _with_students_network(
    settings: PretrainingSettings,
    teacher: Teacher,
    context: RunContext,
    records: RecordVocabulary | None,
) -> PretrainingSettings:
    """The settings of a student: unless it has an architecture, it is the teacher's, made smaller.

    Only rank 0 needs the result. Raises UserError for ``records`` of another vocabulary than the
    teacher's.
    """
    files = settings.tokenizer_files
    if context.ranks.is_chief:
        if records is not None:
            used = vocabulary_named_in(records.manifest_file, records.entry.sha256)
            check_vocabulary(teacher, used)
        files = files.with_vocabulary_of(teacher.files.tokenizer_files)
    network = settings.network
    has_weights = context.start.checkpoint or settings.run.init_checkpoint
    if not (has_weights or settings.bert_config_file):
        network = {**student_config(settings.distillation, teacher.config).to_dict(), **network}
    return dataclasses.replace(settings, tokenizer_files=files, network=network)


def _with_teacher(
    settings: PretrainingSettings, context: RunContext, model: Model, teacher: Teacher
) -> tuple[RunContext, Model]:
    distillation = settings.distillation
    scores_all = distillation.alpha_ce > 0 and not distillation.restrict_ce_to_mask
    task = dataclasses.replace(model.task, score_all_tokens=scores_all)
    teacher_task = PretrainingTask(teacher.config, next_sentence=False, score_all_tokens=scores_all)
    context, student = with_teacher(
        dataclasses.replace(model, task=task),
        teacher,
        teacher_task,
        distillation,
        context,
    )
    return context, dataclasses.replace(student, evaluated=model.task)


@dataclasses.dataclass(frozen=True)
class _Data:
    """The records of a run, opened."""

    train_records: RecordSet | None
    train_info: pipeline.RecordInfo | None
    eval_records: RecordSet | None
    eval_info: pipeline.RecordInfo | None
    masking: MaskingSettings | None
    final_masked_lm_prob: float | None = None

    @property
    def infos(self) -> list[pipeline.RecordInfo]:
        """Descriptions of all records."""
        return [info for info in (self.train_info, self.eval_info) if info is not None]

    @property
    def pair_tasks(self) -> tuple[str, ...]:
        """The tasks of the sentence pairs of all records, see ``RecordInfo.pair_tasks``."""
        return tuple(sorted({task for info in self.infos for task in info.pair_tasks}))

    @property
    def vocabulary(self) -> RecordVocabulary | None:
        """The vocabulary of all records; None if no manifest names it."""
        return next((info.vocabulary for info in self.infos if info.vocabulary), None)

    def check_positions(self, config: BertConfig, network: str) -> None:
        """Raises UserError for records that are too long for a network, called ``network``."""
        for info in self.infos:
            if info.seq_length > config.max_position_embeddings:
                raise UserError(
                    f"the records in {info.first_file} have {info.seq_length} tokens, but "
                    f"{network} has max_position_embeddings={config.max_position_embeddings}; make "
                    "shorter records or use another model."
                )

    def for_training(self, config: BertConfig) -> pipeline.PretrainingRecords:
        """The records to train a network on."""
        return self._for_network(config, self.train_records, self.train_info)

    def for_evaluation(self, config: BertConfig) -> pipeline.PretrainingRecords:
        """The held-out records to evaluate a network on."""
        return self._for_network(config, self.eval_records, self.eval_info)

    def _for_network(
        self, config: BertConfig, records: RecordSet, info: pipeline.RecordInfo
    ) -> pipeline.PretrainingRecords:
        return pipeline.PretrainingRecords(
            records, info, config.vocab_size, config.type_vocab_size, self.masking
        )

    def ledger_entries(self, vocabulary_sha256: str | None) -> dict[str, object]:
        """The ledger's entries on the data.

        ``vocabulary_sha256`` is for records whose manifests do not name their vocabulary.
        """
        train, held_out = self.train_info, self.eval_info
        if self.vocabulary is not None:  # that of this rank's records, which ranks compare
            vocabulary_sha256 = self.vocabulary.entry.sha256
        return {
            "sha256": train.data_sha256 if train else "none",
            "eval_sha256": held_out.data_sha256 if held_out else "none",
            "vocabulary_sha256": vocabulary_sha256,
            "train_records": len(self.train_records) if train else 0,
            "eval_records": len(self.eval_records) if self.eval_records else 0,
            "sentence_pairs": ", ".join(self.pair_tasks),
            "masking": self._where_masked(),
            **self._masking_entries(),
        }

    def _where_masked(self) -> str:
        if self.masking is None:
            return "stored"
        # Then those that store none are the held-out ones.
        if self.train_info is not None and self.train_info.masked:
            return "stored, but drawn for held-out records"
        return "at training time"

    def _masking_entries(self) -> dict[str, object]:
        if self.masking is None:
            return {}
        names = ("masked_lm_prob", "max_predictions_per_seq", "do_whole_word_mask")
        names += ("ngram", *(("favor_shorter_ngram",) if self.masking.ngram > 1 else ()))
        found = {name: getattr(self.masking, name) for name in names}
        return {**found, "final_masked_lm_prob": self.final_masked_lm_prob}


def _open_data(settings: PretrainingSettings) -> _Data:
    train = eval_ = (None, None)
    writes = not settings.run.dry_run
    if settings.run.do_train:
        require_listed_files(settings.data.train_patterns)
        train = _open_records(
            settings.data.train_files, settings.data.train_patterns, writes=writes
        )
    if settings.run.do_eval:
        require_listed_files(settings.data.eval_patterns)
        eval_ = _open_records(settings.data.eval_files, settings.data.eval_patterns, writes=writes)
    infos = [info for _, info in (train, eval_) if info is not None]
    if settings.next_sentence:
        _check_pairs(infos)
    if len({manifest.vocabulary.sha256 for info in infos for manifest in info.manifests}) > 1:
        raise UserError(
            f"the held-out records in {infos[1].first_file} were made with another vocabulary than "
            f"the training records in {infos[0].first_file}; give records with the same vocabulary."
        )
    final = settings.data.final_masked_lm_prob
    if final is not None and settings.run.do_train and train[1].masked:
        raise UserError(
            f"--final_masked_lm_prob={final:g}: the records in {train[1].first_file} store their "
            "masks; make them with --masking=dynamic, or drop the flag."
        )
    masking = _masking(settings.data, infos)
    if settings.data.ngram > 1 and infos and masking is None:
        raise UserError(
            f"--ngram={settings.data.ngram}: the records in {infos[0].first_file} store their "
            "masks; give the flag to data_prep.create_pretraining_data, or drop it."
        )
    return _Data(*train, *eval_, masking, final)


def _check_pairs(infos: Sequence[pipeline.RecordInfo]) -> None:
    """Raises UserError unless the labels of all records are of one task."""
    if not all(info.next_sentence for info in infos):
        raise UserError(
            "the records were made without next sentences; give --nsp=false, or make them again "
            "with --nsp=true."
        )
    if len({task for info in infos for task in info.pair_tasks}) > 1:
        files = " and ".join(sorted({str(info.first_file) for info in infos}))
        raise UserError(
            f"the records in {files} are of two tasks, some for next sentences and some for the "
            "sentence order (--sentence_order); give records of one of them, or --nsp=false."
        )


def _follow_records(
    settings: PretrainingSettings, context: RunContext, data: _Data
) -> tuple[PretrainingSettings, RunContext]:
    """Takes lengths that the user left to their defaults from the records."""
    for name, value in lengths_of(data.infos).items():
        # A ramp of lengths has been read with the default.
        is_fixed = name == "max_seq_length" and settings.optimization.length_ramp is not None
        if name not in context.settings.defaulted or is_fixed:
            continue
        if value != getattr(settings.data, name):
            context = context.with_default(name, value, "as in the records")
            changed = dataclasses.replace(settings.data, **{name: value})
            settings = dataclasses.replace(settings, data=changed)
    return settings, context


def _open_records(
    files: Sequence[Path], patterns: str, *, writes: bool
) -> tuple[RecordSet, pipeline.RecordInfo]:
    files = files or expand_record_files(patterns, flag="input_file")
    records = RecordSet(files, keep_offsets=writes)
    return records, pipeline.inspect_records(records)


def _on_local_disk(settings: PretrainingSettings, data: _Data, context: RunContext) -> _Data:
    """The data, read from copies on this host's disk if a training wants any. Collective."""
    if settings.data.local_cache_dir is None or not settings.run.do_train or settings.run.dry_run:
        return data
    train, held_out = copy_to_local_disks(
        (data.train_records, data.eval_records), settings.data, context
    )
    return dataclasses.replace(data, train_records=train, eval_records=held_out)


def _check_data(settings: PretrainingSettings, data: _Data, config: BertConfig) -> None:
    """Raises UserError for records that do not match the flags or the network."""
    for info in data.infos:
        pipeline.check_records(
            info,
            max_seq_length=settings.data.max_seq_length,
            max_predictions_per_seq=settings.data.max_predictions_per_seq,
            vocab_size=config.vocab_size,
        )
    data.check_positions(config, "the model")


def _masking(data: DataSettings, infos: list[pipeline.RecordInfo]) -> MaskingSettings | None:
    """The settings of masking at training time; None if all records store masks."""
    unmasked = [info for info in infos if not info.masked]
    if not unmasked:
        return None
    return MaskingSettings(
        masked_lm_prob=data.masked_lm_prob,
        max_predictions_per_seq=data.max_predictions_per_seq,
        vocab_size=unmasked[0].vocab_size,
        special_ids=unmasked[0].special_ids,
        do_whole_word_mask=data.whole_word,
        ngram=data.ngram,
        favor_shorter_ngram=data.favor_shorter_ngram,
    )


def _evaluation(
    settings: PretrainingSettings, task: PretrainingTask, data: _Data, ranks: SingleProcess
) -> LossEvaluation | None:
    if not settings.run.do_eval:
        return None
    global_batch_size = settings.run.eval_batch_size * ranks.world_size
    batch = GlobalBatchSlice(global_batch_size, ranks.rank, ranks.world_size)

    def eval_input() -> tf.data.Dataset:
        return pipeline.evaluation_dataset(
            data.for_evaluation(task.config), batch, seed=settings.run.seed
        )

    return LossEvaluation(eval_input, ranks=ranks, task=task, max_steps=settings.run.max_eval_steps)
