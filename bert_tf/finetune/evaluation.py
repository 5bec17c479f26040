"""Predictions of a task for all records of a file, made on all ranks together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.finetune.records import reader_of
from bert_tf.finetune.task import Predicted, SequenceTask
from bert_tf.input.batches import dataset_of_positions
from bert_tf.input.length_buckets import LengthSortedBatches, in_record_order
from bert_tf.model.task import Features, Network
from bert_tf.ranks.ranks import Ranks
from bert_tf.records.sequences import SequenceRecords
from bert_tf.train.evaluation import Figure, Results
from bert_tf.train.job import RunModel
from bert_tf.train.progress import prediction_lines
from bert_tf.train.start_point import find_start
from bert_tf.util.console import say
from bert_tf.util.progress import Progress

RATE = "predict_sequences_per_second"


class FileEvaluation:
    """Predicts every record of a file once, and scores or writes what the task makes of it.

    A :class:`bert_tf.train.evaluation.Evaluation`.

    Attributes:
      answers: what the task made of the last predictions, on rank 0; None before them.
    """

    at_start = False

    def __init__(
        self,
        task: SequenceTask,
        kind: str,
        records: SequenceRecords,
        model: RunModel,
        *,
        ranks: Ranks,
        batch_size: int,
        few_lengths: bool = False,
    ) -> None:
        """Predicts one of the task's files.

        Args:
          task: the task; it scores the file that it evaluates, and writes others.
          kind: which of its files.
          records: those of the file; labels are ignored.
          model: the network, with its vocabulary.
          ranks: all ranks; each predicts its part of the records.
          batch_size: sequences per batch and rank.
          few_lengths: as in :class:`~bert_tf.input.length_buckets.LengthBuckets`.
        """
        self.figure = Figure(task.metric, higher_is_better=True)
        self.answers: Any = None
        self._task, self._kind, self._records = task, kind, records
        self._model, self._ranks = model, ranks
        self._batches = LengthSortedBatches(
            records.lengths,
            batch_size=batch_size,
            max_length=records.max_seq_length,
            rank=ranks.rank,
            world_size=ranks.world_size,
            few_lengths=few_lengths,
        )

    def dataset(self) -> tf.data.Dataset:
        """See :class:`bert_tf.train.evaluation.Evaluation`."""
        reader = reader_of(
            self._records,
            self._model.config,
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
        parts, rate = self._collect(outputs)
        results = None
        if self._ranks.is_chief:
            results = {
                **self._scores(in_record_order(parts, len(self._records)), output_dir),
                RATE: rate,
                "global_step": find_start(output_dir).step,
            }
        return self._ranks.broadcast(results)

    def _scores(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """The scores of the file that is evaluated; writes files to ``output_dir``."""
        task, tokenizer_files = self._task, self._model.tokenizer_files
        file = task.files[self._kind]
        predicted = Predicted(file, self._records, tokenizer_files, predictions)
        self.answers = task.decode(predicted)
        if self._kind == task.evaluated:
            return task.score(predicted, self.answers, output_dir)
        task.write(predicted, self.answers, output_dir)
        return {}

    def _collect(
        self, outputs: Iterable[Mapping[str, np.ndarray]]
    ) -> tuple[list[tuple[np.ndarray, dict[str, np.ndarray]]], float]:
        """The records of each batch of all ranks and their predictions; records per second."""
        progress = None
        if self._ranks.is_chief:
            progress = Progress("prediction", len(self._records), self._task.unit)
        parts: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
        batch_seconds: list[float] = []
        done = 0
        started = previous = time.monotonic()
        for number, batch in enumerate(outputs):
            is_record = self._batches.is_record(number)
            indices = self._batches.indices(number)[is_record]
            parts.append((indices, {name: value[is_record] for name, value in batch.items()}))
            on_all_ranks = len(indices) * self._ranks.world_size
            now = time.monotonic()
            if batch_seconds:  # the time of the first batch is mostly spent on building the graph
                done += on_all_ranks
            batch_seconds.append(now - previous)
            previous = now
            if progress is not None:
                progress.advance(on_all_ranks)
        steady_seconds = sum(batch_seconds[1:])
        everything = [part for rank in self._ranks.gather(parts) for part in rank]
        if self._ranks.is_chief:
            for line in prediction_lines(
                batch_seconds,
                seconds=previous - started,
                sequences=len(self._records),
                steady_sequences=done,
            ):
                say(line)
        rate = done / steady_seconds if steady_seconds else 0.0
        return everything, rate
