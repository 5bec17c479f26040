"""The records of fine-tuning: made once for each file, and read in batches."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.input.batches import BatchReader, dataset_of_positions
from bert_tf.input.length_buckets import LengthBuckets, ShuffledBatches
from bert_tf.model.config import BertConfig
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.records.tfrecord import RecordSet
from bert_tf.train.job import TrainingData
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run
from bert_tf.util.temporary import TemporaryDirectory

_MOST_NAMED = 20  # files, such as a language's


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
        existing = stage.find(settings.features_dir / kind)
        if all(run.ranks.gather(existing is not None)):
            directory = settings.features_dir / kind
    run.ranks.once_on_each_host(lambda: stage.build(directory))
    records = stage.open(directory)
    counts = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in records.counts.items()
    )
    first, *others = (source.name for source in stage.sources)
    names = [first, *others] if len(others) < _MOST_NAMED else [first, f"{len(others):,} others"]
    run.message(f"{' and '.join(names)}: {counts}")
    return records


@dataclasses.dataclass(frozen=True)
class BatchOrder(TrainingData):
    """The records of each update in fine-tuning.

    Attributes:
      records: the training records.
      config: the network's configuration.
      max_seq_length: length of the longest sequence.
      seed: the seed of the order.
      by_length: whether to batch sequences of similar length.
      num_records: their number, for epochs.
    """

    records: SequenceRecords
    config: BertConfig
    max_seq_length: int
    seed: int
    by_length: bool
    num_records: int

    @property
    def most_tokens(self) -> int:
        """See :class:`bert_tf.train.job.TrainingData`."""
        return self.max_seq_length * (self.records.num_choices or 1)

    def batches(self, run: Run, plan: Plan) -> tf.data.Dataset:
        """See :class:`bert_tf.train.job.TrainingData`."""
        order, rank_slice = self._order(run, plan), run.batch_slice(plan.batch)
        reader = reader_of(
            self.records,
            self.config,
            batch_size=plan.batch.rank_batch_size,
            indices=lambda position: order.indices(position, rank_slice),
            positions_kept=order.padded_length,
        )
        return dataset_of_positions(run.start.data_position, None, reader.read)

    def records_at(self, run: Run, plan: Plan, position: int) -> list[tuple[str, int]]:
        """See :class:`bert_tf.train.job.TrainingData`."""
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


def reader_of(records: SequenceRecords, config: BertConfig, **batches: Any) -> BatchReader:
    """Reads batches of records for a network; ``batches`` are arguments of :class:`BatchReader`."""
    return BatchReader(
        RecordSet(records.files),
        spec=records.spec,
        lengths=records.record_lengths,
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
        **batches,
    )
