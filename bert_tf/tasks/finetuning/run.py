"""Fine-tuning: opening models, steps from epochs, length buckets, seeds and predictions.

A task supplies its records (:class:`SequenceRecords`), its :class:`Task` and, if it is evaluated, a
:class:`PredictionEvaluation` that scores predictions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.model_files import ModelFiles, model_files
from bert_tf.config.settings import FinetuningSettings, OptimizationSettings
from bert_tf.inference.model_directory import ModelParts, collect_parts
from bert_tf.input.batches import BatchReader, dataset_of_positions
from bert_tf.input.length_buckets import LengthBuckets, LengthSortedBatches
from bert_tf.input.order import batch_indices
from bert_tf.model.config import BertConfig
from bert_tf.model.task import Features, Network
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.distillation.losses import DistilledTask
from bert_tf.tasks.distillation.teacher import Teacher, open_teacher, student_config, with_teacher
from bert_tf.train.checks import check_start, settle_scaling
from bert_tf.train.context import RunContext, choose_arithmetic
from bert_tf.train.evaluation import Evaluation, Figure, Results
from bert_tf.train.job import Job, Model, TrainingData, make_job
from bert_tf.train.plans import resolve_plans, with_steps
from bert_tf.train.start_point import find_start
from bert_tf.train.summary import prediction_lines
from bert_tf.train.trainer import Trainer
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.console import say
from bert_tf.util.files import remove_partial_files, write_json
from bert_tf.util.progress import Progress
from bert_tf.util.temporary import TemporaryDirectory
from bert_tf.util.workers import resolve_num_workers

SEEDS_NAME = "seeds.json"
RATE = "predict_sequences_per_second"

Settings = TypeVar("Settings", bound=FinetuningSettings)


def run_with_seeds(
    settings: Settings, run_once: Callable[[Settings, dict[int, Results]], Results | None]
) -> Results | None:
    """Calls ``run_once`` once, or with each of the seeds, each in its own directory.

    ``run_once`` receives the results of earlier seeds and adds its own. Returns the result of the
    last call.
    """
    if not settings.seeds:
        return run_once(settings, {})
    by_seed: dict[int, Results] = {}
    for seed in settings.seeds:
        directory = settings.run.output_dir / f"seed_{seed}"
        run = dataclasses.replace(settings.run, seed=seed, output_dir=directory)
        results = run_once(dataclasses.replace(settings, run=run), by_seed)
    return results


def report_seeds(
    settings: FinetuningSettings,
    context: RunContext,
    by_seed: Mapping[int, Results],
    names: Sequence[str],
    *,
    digits: int = 2,
) -> None:
    """After the last of several seeds: writes ``seeds.json`` and shows the metrics ``names``.

    ``digits`` is the number of decimals shown.
    """
    if len(settings.seeds) < 2 or len(by_seed) < len(settings.seeds):
        return
    summary = summarize_seeds(by_seed)
    directory = settings.run.output_dir.parent
    remove_partial_files(directory)
    write_json(directory / SEEDS_NAME, summary)
    spread = "  ".join(
        f"{name} {summary[name]['mean']:.{digits}f} +- {summary[name]['std']:.{digits}f}"
        for name in names
    )
    context.message(f"{len(by_seed)} seeds: {spread}")


def summarize_seeds(by_seed: Mapping[int, Results]) -> dict[str, dict[str, object]]:
    """Mean, sample standard deviation and values of every metric, over the seeds."""
    names = next(iter(by_seed.values()))
    summary: dict[str, dict[str, object]] = {}
    for name in names:
        values = {seed: results[name] for seed, results in by_seed.items()}
        spread = statistics.stdev(values.values()) if len(values) > 1 else 0.0
        mean = statistics.mean(values.values())
        summary[name] = {"mean": mean, "std": spread, "by_seed": values}
    return summary


def open_finetuning(
    settings: Settings, context: RunContext, make_task: Callable[[BertConfig], DistilledTask]
) -> tuple[Settings, RunContext, ModelParts, Model]:
    """Opens the model of a run that has begun, and chooses its arithmetic.

    Returns the settings with their optimization settled and the length that the network has, the
    context with the arithmetic chosen, the network's parts and the model to train. Raises UserError
    as :func:`open_model`, for sequences that do not fit the network, and for settings that
    contradict each other or the run that is resumed, or do not suit the teacher.
    """
    teacher, distillation = None, settings.distillation
    if distillation is not None and settings.run.do_train:
        teacher = open_teacher(distillation, context)
    parts = open_model(settings, context, teacher=teacher)
    context, length = context.fit_length(settings.max_seq_length, parts.config)
    if teacher is not None:
        context, length = context.fit_length(length, teacher.config, whose="the teacher's")
    context = choose_arithmetic(context, parts.config, settings.optimization, max_seq_length=length)
    model = Model(make_task(parts.config), parts.vocabulary, tokenizer_files=parts.tokenizer_files)
    if teacher is not None:
        context, model = with_teacher(
            model,
            teacher,
            make_task(teacher.config),
            distillation,
            context,
        )
    optimization = settle_scaling(context, settings.optimization)
    settings = dataclasses.replace(settings, optimization=optimization, max_seq_length=length)
    return settings, context, parts, model


def check_without_records(
    settings: FinetuningSettings, context: RunContext, model: Model, *, max_records: int
) -> None:
    """Checks everything that does not depend on the records, before they are written.

    ``max_records`` is an upper bound on the training records. Raises UserError.
    """
    resolve_num_workers(settings.num_workers)
    optimization = count_steps(settings, context, max_records, is_bound=True)
    resolve_plans(optimization, context.ranks, trains=settings.run.do_train)
    check_start(context, model, settings.optimization)


def open_model(
    settings: FinetuningSettings, context: RunContext, *, teacher: Teacher | None = None
) -> ModelParts:
    """The network's configuration and vocabulary, as given or as stored with the weights.

    A student without weights has the architecture of its teacher, with fewer layers. Raises
    UserError if something is missing.
    """
    weights = Path(settings.run.init_checkpoint or settings.run.output_dir)
    has_weights = settings.run.init_checkpoint or context.start.checkpoint
    # A dry run does not create its output directory.
    is_new = not settings.run.init_checkpoint and not weights.is_dir()
    if teacher is not None and not has_weights:
        config = student_config(settings.distillation, teacher.config)
        weights, files = Path(teacher.path), dataclasses.replace(teacher.files, config=config)
    else:
        files = ModelFiles() if is_new else model_files(weights)
    parts = collect_parts(
        weights,
        files,
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    for note in parts.notes:
        context.message(note)
    return parts


@contextlib.contextmanager
def directory_of_new_records(context: RunContext, features_dir: Path) -> Iterator[Path]:
    """The directory to write records to: ``features_dir``, or a temporary one in a dry run."""
    if not context.settings.dry_run:
        yield features_dir
        return
    made = TemporaryDirectory("records") if context.ranks.is_chief else None
    directory = Path(context.ranks.broadcast(made and made.name))
    try:
        yield directory
        context.ranks.gather(None)  # waits until no rank reads them any more
    finally:
        if made is not None:
            made.cleanup()
        elif context.ranks.local_rank == 0:  # of another host
            shutil.rmtree(directory, ignore_errors=True)


def obtain_records(
    settings: FinetuningSettings,
    context: RunContext,
    new_records: Path,
    stage: SequenceStage,
    *,
    kind: str,
) -> SequenceRecords:
    """The records of a file, written by local rank 0 of each host if they do not exist yet.

    Args:
      settings, context: those of the run.
      new_records: the directory from :func:`directory_of_new_records`.
      stage: makes the records.
      kind: the name of their subdirectory.
    """
    directory = new_records / kind
    if settings.run.dry_run:
        found = stage.find(settings.features_dir / kind)
        if all(context.ranks.gather(found is not None)):
            directory = settings.features_dir / kind
    context.ranks.once_on_each_host(lambda: stage.build(directory))
    records = stage.open(directory)
    counts = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in records.counts.items()
    )
    context.message(f"{stage.source.name}: {counts}")
    return records


def data_entries(
    settings: FinetuningSettings,
    parts: ModelParts,
    *,
    train: SequenceRecords | None,
    **others: SequenceRecords | None,
) -> dict[str, object]:
    """The ledger's entries on the data, for ``train.run.run_job``.

    ``others`` are the records to predict, by the prefix of their entries' names.
    """
    hashes = {f"{name}_sha256": r.sha256 if r else "none" for name, r in others.items()}
    return {
        "sha256": train.sha256 if train else "none",
        **hashes,
        "vocabulary_sha256": parts.tokenizer.vocab_sha256,
        "lower_case": parts.tokenizer.lower_case,
        "length_buckets": settings.length_buckets,
        "train_records": len(train) if train else 0,
    }


def count_steps(
    settings: FinetuningSettings,
    context: RunContext,
    num_records: int,
    *,
    is_bound: bool = False,
) -> OptimizationSettings:
    """The optimization settings, with steps computed from epochs if no steps are given.

    ``is_bound`` means that ``num_records`` is only an upper bound. Raises UserError as
    ``plans.with_steps``.
    """
    return with_steps(
        settings.optimization,
        context.ranks,
        records=num_records,
        epochs=settings.num_train_epochs,
        warmup_proportion=settings.warmup_proportion,
        trains=settings.run.do_train,
        is_bound=is_bound,
    )


def finetuning_job(
    settings: FinetuningSettings,
    context: RunContext,
    *,
    model: Model,
    train: SequenceRecords | None,
    evaluation: Evaluation | None,
) -> Job:
    """The job of a fine-tuning run; ``train`` is None for a run that only predicts.

    The settings' optimization must be settled (``checks.settle_scaling``).
    """

    def train_records(
        context: RunContext, batch: BatchPlan, position: int
    ) -> list[tuple[str, int]]:
        _, indices = _training_order(settings, context, train, batch)
        return RecordSet(train.files).locations(indices(position).tolist())

    return make_job(
        context,
        model,
        data=TrainingData(
            lambda context, batch: training_batches(settings, context, model.config, train, batch),
            max_seq_length=settings.max_seq_length,
            records=train_records,
            counted_in_epochs=settings.optimization.num_train_steps is None,
        ),
        evaluation=evaluation,
        optimization=count_steps(settings, context, 1 if train is None else len(train)),
        skip_padding=True,
    )


def predict_at_end(job: Job, prediction: PredictionEvaluation) -> None:
    """Predicts with the latest checkpoint of a finished job; does nothing in a dry run."""
    if not job.context.settings.dry_run:
        Trainer(dataclasses.replace(job, evaluation=prediction)).predict()


def training_batches(
    settings: FinetuningSettings,
    context: RunContext,
    config: BertConfig,
    records: SequenceRecords,
    batch: BatchPlan,
) -> tf.data.Dataset:
    """This rank's slice of every global batch, bucketed by length if the settings say so."""
    buckets, indices = _training_order(settings, context, records, batch)
    reader = _reader(
        records,
        config,
        batch_size=batch.rank_batch_size,
        indices=indices,
        positions_kept=buckets.padded_length if settings.length_buckets else None,
    )
    return dataset_of_positions(context.start.data_position, None, reader.read)


def _training_order(
    settings: FinetuningSettings,
    context: RunContext,
    records: SequenceRecords,
    batch: BatchPlan,
) -> tuple[LengthBuckets, Callable[[int], np.ndarray]]:
    """The records by length, and the numbers of this rank's records at a position."""
    rank_slice = context.batch_slice(batch)
    seed = settings.run.seed
    buckets = LengthBuckets(
        records.lengths,
        global_batch_size=batch.global_batch_size,
        seed=seed,
        max_length=settings.max_seq_length,
        origin=rank_slice.origin,
    )

    def shuffled(position: int) -> np.ndarray:
        return batch_indices(position, rank_slice, num_records=len(records), seed=seed)

    def bucketed(position: int) -> np.ndarray:
        return buckets.indices(position, rank_slice)

    return buckets, bucketed if settings.length_buckets else shuffled


def _reader(
    records: SequenceRecords,
    config: BertConfig,
    *,
    batch_size: int,
    indices: Callable[[int], np.ndarray],
    positions_kept: Callable[[int], int] | None,
) -> BatchReader:
    return BatchReader(
        RecordSet(records.files),
        spec=records.spec,
        lengths=records.record_lengths,
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
        batch_size=batch_size,
        indices=indices,
        positions_kept=positions_kept,
    )


class PredictionEvaluation:
    """Predicts every record once, on all ranks together, and scores the predictions.

    A :class:`bert_tf.train.evaluation.Evaluation`. A task's subclass defines the ``figure`` by
    which checkpoints are compared, and implements :meth:`score`.

    Attributes:
      config: the network's configuration.
    """

    figure: Figure
    at_start = False

    def __init__(
        self,
        records: SequenceRecords,
        config: BertConfig,
        *,
        ranks: SingleProcess,
        batch_size: int,
        length_buckets: bool,
        unit: str = "sequences",
    ) -> None:
        """Predicts ``records``.

        Args:
          records: the records; labels are ignored.
          config: the network's configuration.
          ranks: all ranks; each predicts its share.
          batch_size: sequences per batch and rank.
          length_buckets: whether to pad only to the longest sequence of a batch.
          unit: the word for records in progress lines.
        """
        self._records = records
        self.config = config
        self._ranks = ranks
        self._length_buckets = length_buckets
        self._unit = unit
        self._batches = LengthSortedBatches(
            records.lengths,
            batch_size=batch_size,
            max_length=records.max_seq_length,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Returns the results and writes files to ``output_dir``; called on rank 0 only.

        ``predictions`` are those of the task for all records, [N, ...] in the records' order.
        """
        raise NotImplementedError

    def dataset(self) -> tf.data.Dataset:
        """As in :class:`bert_tf.train.evaluation.Evaluation`."""
        reader = _reader(
            self._records,
            self.config,
            batch_size=len(self._batches.indices(0)),
            indices=self._batches.indices,
            positions_kept=self._batches.padded_length if self._length_buckets else None,
        )
        return dataset_of_positions(0, self._batches.num_batches, reader.read)

    def outputs(self, network: Network, features: Features) -> dict[str, tf.Tensor]:
        """As in :class:`bert_tf.train.evaluation.Evaluation`: the task's predictions."""
        return network.predictions(features)

    def run(self, outputs: Iterable[Mapping[str, np.ndarray]], output_dir: Path) -> Results:
        """As in :class:`bert_tf.train.evaluation.Evaluation`."""
        predictions, rate = self._collect(outputs)
        results = None
        if self._ranks.is_chief:
            results = {
                **self.score(predictions, output_dir),
                RATE: rate,
                "global_step": find_start(output_dir).step,
            }
        return self._ranks.broadcast(results)

    def _collect(
        self, outputs: Iterable[Mapping[str, np.ndarray]]
    ) -> tuple[dict[str, np.ndarray], float]:
        """The predictions of all records, on every rank, and records per second over all ranks."""
        progress = None
        if self._ranks.is_chief:
            progress = Progress("prediction", len(self._records), self._unit)
        found, batch_seconds, done = [], [], 0
        started = previous = time.monotonic()
        for number, batch in enumerate(outputs):
            is_record = self._batches.is_record(number)
            indices = self._batches.indices(number)[is_record]
            found.append((indices, {name: value[is_record] for name, value in batch.items()}))
            on_all_ranks = len(indices) * self._ranks.world_size
            now = time.monotonic()
            if batch_seconds:  # the first batch's time is mostly that of building the graph
                done += on_all_ranks
            batch_seconds.append(now - previous)
            previous = now
            if progress is not None:
                progress.advance(on_all_ranks)
        steady_seconds = sum(batch_seconds[1:])
        everything = [part for rank in self._ranks.gather(found) for part in rank]
        if self._ranks.is_chief:
            for line in prediction_lines(
                batch_seconds,
                seconds=previous - started,
                sequences=len(self._records),
                steady_sequences=done,
            ):
                say(line)
        rate = done / steady_seconds if steady_seconds else 0.0
        return _assemble(everything, len(self._records)), rate


def _assemble(
    parts: Sequence[tuple[np.ndarray, Mapping[str, np.ndarray]]], num_records: int
) -> dict[str, np.ndarray]:
    """Merges (record indices, predictions) parts into arrays in the records' order.

    Those of a batch may have fewer positions than those of another: zeros follow.
    """
    arrays: dict[str, np.ndarray] = {}
    for name in parts[0][1]:
        values = [(indices, found[name]) for indices, found in parts]
        shape = np.max([value.shape[1:] for _, value in values], axis=0, initial=0)
        arrays[name] = np.zeros((num_records, *shape.astype(int)), values[0][1].dtype)
        for indices, value in values:
            arrays[name][(indices, *map(slice, value.shape[1:]))] = value
    return arrays
