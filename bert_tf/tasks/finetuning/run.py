"""Fine-tuning: opening models, length buckets and predictions.

A task supplies its records (:class:`SequenceRecords`), its :class:`Task` and, if it is evaluated, a
:class:`PredictionEvaluation` that scores predictions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.declared import settings_of_model
from bert_tf.input.batches import BatchReader, dataset_of_positions
from bert_tf.input.length_buckets import (
    LengthBuckets,
    LengthSortedBatches,
    ShuffledBatches,
    in_record_order,
)
from bert_tf.model.config import BertConfig
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel, complete_model
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.ranks.ranks import Ranks
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.finetuning.settings import FinetuningSettings
from bert_tf.train.evaluation import Figure, Results
from bert_tf.train.job import InitialWeights, RunModel, TrainingData, no_batches
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run
from bert_tf.train.start_point import find_start
from bert_tf.train.summary import prediction_lines
from bert_tf.util.console import say
from bert_tf.util.digest import DIGEST_KEY, VOCABULARY_DIGEST_KEY
from bert_tf.util.progress import Progress
from bert_tf.util.temporary import TemporaryDirectory

if TYPE_CHECKING:
    from bert_tf.tasks.distillation.losses import DistilledTask
    from bert_tf.tasks.distillation.teacher import Teacher
    from bert_tf.tasks.finetuning.repeats import Repeats

RATE = "predict_sequences_per_second"

Settings = TypeVar("Settings", bound=FinetuningSettings)
Result = TypeVar("Result")


def run_repeatedly(
    settings: Settings, run_once: Callable[[Settings, Repeats | None], Result]
) -> Result:
    """Calls ``run_once`` once, or for each trial of a search and each seed.

    What it receives besides settings is for the results of repetitions. Returns the result of the
    last call.
    """
    if not settings.seeds and not settings.search:
        return run_once(settings, None)
    # Imported here so that a single run does not load it.
    from bert_tf.tasks.finetuning.repeats import run_all

    return run_all(settings, run_once)


def open_finetuning(
    settings: FinetuningSettings, run: Run, make_task: Callable[[BertConfig], DistilledTask]
) -> tuple[RunModel, int]:
    """Opens the network of a run, and its teacher if it has one. Collective.

    Returns the model, with its vocabulary and casing, and the maximum sequence length. Raises
    UserError as :func:`open_model`, and if sequences do not fit the network or settings do not suit
    the teacher.
    """
    teacher, distillation = None, settings.distillation
    if distillation is not None and settings.run.do_train:
        # Imported here so that runs without a teacher do not load it.
        from bert_tf.tasks.distillation.task import DistillationTask
        from bert_tf.tasks.distillation.teacher import open_teacher, with_teacher

        teacher = open_teacher(distillation, run)
    found = open_model(settings, run, teacher=teacher)
    length = run.fit_length(settings.max_seq_length, found.config)
    task = make_task(found.config)
    model = RunModel(
        task,
        found.vocabulary,
        tokenizer_files=found.tokenizer_files,
        initial=InitialWeights(settings.run.start.init_checkpoint),
        kept={**settings_of_model(settings), "max_seq_length": length},
    )
    if teacher is None or distillation is None:
        return model, length
    length = run.fit_length(length, teacher.config, whose="the teacher's")
    learnt = DistillationTask(task, make_task(teacher.config), distillation)
    return with_teacher(model, teacher, learnt, run), length


def open_model(
    settings: FinetuningSettings, run: Run, *, teacher: Teacher | None = None
) -> CompleteModel:
    """The network's configuration and vocabulary, as the user gave them or stored with the weights.

    A student without weights gets its teacher's architecture with fewer layers. Raises UserError
    if something is missing.
    """
    weights = Path(settings.run.start.init_checkpoint or settings.run.output_dir)
    has_weights = settings.run.start.init_checkpoint or run.start.checkpoint
    # A dry run does not create its output directory.
    is_new = not settings.run.start.init_checkpoint and not weights.is_dir()
    if teacher is not None and settings.distillation is not None and not has_weights:
        from bert_tf.tasks.distillation.teacher import student_config

        config = student_config(settings.distillation, teacher.config)
        weights, files = Path(teacher.path), dataclasses.replace(teacher.files, config=config)
    else:
        files = ModelDirectory() if is_new else ModelDirectory.of(weights)
    found = complete_model(
        files,
        weights,
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    run.report(found.notes, part="configuration")
    return found


@contextlib.contextmanager
def directory_of_new_records(run: Run, features_dir: Path) -> Iterator[Path]:
    """The directory to write records to: ``features_dir``, or a temporary one in a dry run."""
    if not run.settings.dry_run:
        yield features_dir
        return
    made = TemporaryDirectory("records") if run.ranks.is_chief else None
    directory = Path(run.ranks.broadcast(made and made.name))
    try:
        yield directory
        run.ranks.gather(None)  # a barrier: wait until no rank reads them any more
    finally:
        if made is not None:
            made.cleanup()
        elif run.ranks.local_rank == 0:  # on another host
            shutil.rmtree(directory, ignore_errors=True)


def obtain_records(
    settings: FinetuningSettings,
    run: Run,
    new_records: Path,
    stage: SequenceStage,
    *,
    kind: str,
) -> SequenceRecords:
    """The records of a file, written by local rank 0 of each host unless they exist already.

    Args:
      settings, run: the settings and the run.
      new_records: the directory from :func:`directory_of_new_records`.
      stage: makes the records.
      kind: the name of the records' subdirectory.
    """
    directory = new_records / kind
    if settings.run.dry_run:
        found = stage.find(settings.features_dir / kind)
        if all(run.ranks.gather(found is not None)):
            directory = settings.features_dir / kind
    run.ranks.once_on_each_host(lambda: stage.build(directory))
    records = stage.open(directory)
    counts = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in records.counts.items()
    )
    names = " and ".join(source.name for source in stage.sources)
    run.message(f"{names}: {counts}")
    return records


def data_entries(
    settings: FinetuningSettings,
    model: RunModel,
    *,
    train: SequenceRecords | None,
    **others: SequenceRecords | None,
) -> dict[str, object]:
    """The ledger's entries on the data (see :class:`bert_tf.train.job.JobData`).

    ``others`` are the records to predict, keyed by the prefix of their entries' names.
    """
    hashes = {f"{name}_{DIGEST_KEY}": r.digest if r else "none" for name, r in others.items()}
    return {
        DIGEST_KEY: train.digest if train else "none",
        **hashes,
        VOCABULARY_DIGEST_KEY: model.vocabulary and model.vocabulary.digest,
        "tokenizer": model.tokenizer_files.kind,
        "lower_case": model.tokenizer_files.do_lower_case,
        "strip_accents": model.tokenizer_files.strips_accents,
        "length_buckets": settings.length_buckets,
        "train_records": len(train) if train else 0,
    }


@dataclasses.dataclass(frozen=True)
class BatchOrder:
    """The records of each update in fine-tuning.

    Attributes:
      records: the training records.
      config: the network's configuration.
      max_seq_length: length of the longest sequence.
      seed: the seed of the order.
      by_length: whether to batch sequences of similar length.
    """

    records: SequenceRecords
    config: BertConfig
    max_seq_length: int
    seed: int
    by_length: bool

    def batches(self, run: Run, plan: Plan) -> tf.data.Dataset:
        """This rank's part of every global batch (see :class:`bert_tf.train.job.TrainingData`)."""
        order, rank_slice = self._order(run, plan), run.batch_slice(plan.batch)
        reader = _reader(
            self.records,
            self.config,
            batch_size=plan.batch.rank_batch_size,
            indices=lambda position: order.indices(position, rank_slice),
            positions_kept=order.padded_length,
        )
        return dataset_of_positions(run.start.data_position, None, reader.read)

    def records_at(self, run: Run, plan: Plan, position: int) -> list[tuple[str, int]]:
        """The file of each record and its index there (see ``TrainingData.records``)."""
        indices = self._order(run, plan).indices(position, run.batch_slice(plan.batch))
        return RecordSet(self.records.files).locations(indices.tolist())

    def _order(self, run: Run, plan: Plan) -> LengthBuckets | ShuffledBatches:
        order = LengthBuckets if self.by_length else ShuffledBatches
        return order(
            self.records.lengths,
            global_batch_size=plan.batch.global_batch_size,
            seed=self.seed,
            max_length=self.max_seq_length,
            origin=run.batch_slice(plan.batch).origin,
            few_lengths=bool(run.runtime.use_xla),
        )


def training_data(
    settings: FinetuningSettings,
    config: BertConfig,
    records: SequenceRecords | None,
    *,
    max_seq_length: int,
) -> TrainingData:
    """The training data; ``records`` is None for a run that only predicts."""
    if records is None:
        return TrainingData(no_batches, max_seq_length)
    order = BatchOrder(
        records, config, max_seq_length, settings.run.seed, by_length=settings.length_buckets
    )
    return TrainingData(
        order.batches, max_seq_length, num_records=len(records), records=order.records_at
    )


def _reader(
    records: SequenceRecords,
    config: BertConfig,
    *,
    batch_size: int,
    indices: Callable[[int], np.ndarray],
    positions_kept: Callable[[int], int],
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

    A :class:`bert_tf.train.evaluation.Evaluation`. A task's subclass defines ``figure``, the metric
    by which checkpoints are compared, and implements :meth:`score`.

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
        ranks: Ranks,
        batch_size: int,
        few_lengths: bool = False,
        unit: str = "sequences",
    ) -> None:
        """Predicts ``records``.

        Args:
          records: the records; labels are ignored.
          config: the network's configuration.
          ranks: all ranks; each predicts its part of the records.
          batch_size: sequences per batch and rank.
          few_lengths: as in :class:`~bert_tf.input.length_buckets.LengthBuckets`.
          unit: what progress lines call a record.
        """
        self._records = records
        self.config = config
        self._ranks = ranks
        self._unit = unit
        self._batches = LengthSortedBatches(
            records.lengths,
            batch_size=batch_size,
            max_length=records.max_seq_length,
            rank=ranks.rank,
            world_size=ranks.world_size,
            few_lengths=few_lengths,
        )

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Returns the results and writes files to ``output_dir``; called on rank 0 only.

        ``predictions`` are the task's outputs for all records, [N, ...], in record order.
        """
        raise NotImplementedError

    def dataset(self) -> tf.data.Dataset:
        """See :class:`bert_tf.train.evaluation.Evaluation`."""
        reader = _reader(
            self._records,
            self.config,
            batch_size=len(self._batches.indices(0)),
            indices=self._batches.indices,
            positions_kept=self._batches.padded_length,
        )
        return dataset_of_positions(0, self._batches.num_batches, reader.read)

    def outputs(self, network: Network, features: Features) -> dict[str, tf.Tensor]:
        """The task's predictions (see :class:`bert_tf.train.evaluation.Evaluation`)."""
        return network.forward(lambda n: n.predictions(features))

    def run(self, outputs: Iterable[Mapping[str, np.ndarray]], output_dir: Path) -> Results:
        """See :class:`bert_tf.train.evaluation.Evaluation`."""
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
        found: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
        batch_seconds: list[float] = []
        done = 0
        started = previous = time.monotonic()
        for number, batch in enumerate(outputs):
            is_record = self._batches.is_record(number)
            indices = self._batches.indices(number)[is_record]
            found.append((indices, {name: value[is_record] for name, value in batch.items()}))
            on_all_ranks = len(indices) * self._ranks.world_size
            now = time.monotonic()
            if batch_seconds:  # the time of the first batch is mostly spent on building the graph
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
        return in_record_order(everything, len(self._records)), rate
