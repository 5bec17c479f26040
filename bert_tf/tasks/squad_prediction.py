"""The evaluation of the span task: answering a SQuAD file with all ranks, scoring the answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.console import say
from bert_tf.estimator.choice import tf_estimator
from bert_tf.input.batches import BatchReader, dataset_of_positions
from bert_tf.input.length_buckets import LengthSortedBatches
from bert_tf.model.task import Features, Network
from bert_tf.progress import Progress
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.records.tfrecord import RecordSet
from bert_tf.squad.answers import (
    AnswerSettings,
    Predictions,
    SpanCandidates,
    best_span_texts,
    decode_answers,
    write_predictions,
)
from bert_tf.squad.examples import SquadFile
from bert_tf.squad.features import FeatureSet
from bert_tf.squad.metrics import evaluate
from bert_tf.squad.thresholds import official_best
from bert_tf.squad.windows import WindowSettings
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.evaluation import Figure, Results
from bert_tf.training.start_point import find_start
from bert_tf.training.summary import prediction_lines

RATE = "predict_sequences_per_second"
FIRST_OF = "questions_in_file"  # only where fewer are answered


@dataclasses.dataclass(frozen=True)
class Questions:
    """A file to answer, as records.

    Attributes:
      squad: its questions.
      features: the records of their windows.
      windows: how they were cut.
      config: of the model that is to answer them.
    """

    squad: SquadFile
    features: FeatureSet
    windows: WindowSettings
    config: BertConfig

    def reader(
        self,
        *,
        batch_size: int,
        indices: Callable[[int], np.ndarray],
        positions_kept: Callable[[int], int] | None,
    ) -> BatchReader:
        """Reads batches of the records; arguments as of :class:`BatchReader`."""
        return BatchReader(
            RecordSet(self.features.files),
            spec=self.features.spec,
            lengths=self.features.record_lengths,
            vocab_size=self.config.vocab_size,
            type_vocab_size=self.config.type_vocab_size,
            batch_size=batch_size,
            indices=indices,
            positions_kept=positions_kept,
        )

    @property
    def are_scored(self) -> bool:
        """Whether the file knows the answers."""
        return is_scored(self.squad)


def is_scored(squad: SquadFile) -> bool:
    """Whether a file knows answers to compare with."""
    return any(example.answers or example.is_impossible for example in squad.examples)


class SpanEvaluation:
    """Predictions, their files and their scores; ``predictions`` are rank 0's last ones."""

    figure = Figure("f1", higher_is_better=True)
    at_start = False

    def __init__(
        self,
        questions: Questions,
        tokenizer: Tokenizer,
        *,
        settings: AnswerSettings,
        ranks: SingleProcess,
        batch_size: int,
        length_buckets: bool,
    ) -> None:
        """Answers ``questions``.

        Args:
          questions: what to answer.
          tokenizer: the one that the records were made with.
          settings: how spans become answers.
          ranks: all ranks; each predicts its share.
          batch_size: sequences in a batch of a rank.
          length_buckets: whether to pad to the longest of a batch only.
        """
        self._questions = questions
        self._tokenizer = tokenizer
        self._settings = settings
        self._ranks = ranks
        self._length_buckets = length_buckets
        self._batches = LengthSortedBatches(
            questions.features.lengths,
            batch_size=batch_size,
            max_length=questions.windows.max_seq_length,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        self.predictions: Predictions | None = None

    def spec(self, network: Network, features: Features) -> tf_estimator.EstimatorSpec:
        """As in :class:`bert_tf.training.evaluation.Evaluation`."""
        return tf_estimator.EstimatorSpec(
            tf_estimator.ModeKeys.PREDICT, predictions=network.predictions(features)
        )

    def run(self, estimator: tf_estimator.Estimator, output_dir: Path) -> Results:
        """As in :class:`bert_tf.training.evaluation.Evaluation`; writes the prediction files."""
        candidates, rate = self._predict(estimator)
        results = None
        if self._ranks.is_chief:
            results = {
                **self._answer(candidates, output_dir),
                RATE: rate,
                "global_step": find_start(output_dir).step,
            }
        return self._ranks.broadcast(results)

    def _answer(self, candidates: SpanCandidates, output_dir: Path) -> Mapping[str, float]:
        questions = self._questions
        squad = questions.squad
        predictions = self.predictions = decode_answers(
            squad, self._tokenizer, questions.windows, candidates, self._settings
        )
        version_2 = self._settings.version_2_with_negative
        write_predictions(output_dir, predictions, version_2_with_negative=version_2)
        if not questions.are_scored:
            return {}
        # What predictions.json says is scored, by the rules that it was made by: a file without an
        # unanswerable question may have been answered with "" all the same.
        scores = evaluate(squad, predictions.answers, version_2=version_2)
        if squad.first_of is not None:
            scores[FIRST_OF] = squad.first_of
        if not version_2:
            return scores
        # With every question's best span, the best thresholds are found as well.
        spans = best_span_texts(squad, predictions)
        return {**scores, **official_best(squad, spans, predictions.null_odds)}

    def _predict(self, estimator: tf_estimator.Estimator) -> tuple[SpanCandidates, float]:
        """The candidates of every window on every rank, and windows a second of all ranks."""
        progress = None
        if self._ranks.is_chief:
            progress = Progress("prediction", self._num_windows, "windows")
        found, batch_seconds, done = [], [], 0
        batches = estimator.predict(
            self._input, hooks=self._ranks.broadcast_hooks(), yield_single_examples=False
        )
        started = previous = time.monotonic()
        for number, batch in enumerate(batches):
            is_record = self._batches.is_record(number)
            indices = self._batches.indices(number)[is_record]
            found.append((indices, {name: value[is_record] for name, value in batch.items()}))
            of_all_ranks = len(indices) * self._ranks.world_size
            now = time.monotonic()
            if batch_seconds:  # what came before the first is mostly the building of the graph
                done += of_all_ranks
            batch_seconds.append(now - previous)
            previous = now
            if progress is not None:
                progress.advance(of_all_ranks)
        steady_seconds = sum(batch_seconds[1:])
        everything = [part for rank in self._ranks.gather(found) for part in rank]
        if self._ranks.is_chief:
            for line in prediction_lines(
                batch_seconds,
                seconds=previous - started,
                sequences=self._num_windows,
                steady_sequences=done,
            ):
                say(line)
        rate = done / steady_seconds if steady_seconds else 0.0
        return _assemble(everything, self._num_windows), rate

    @property
    def _num_windows(self) -> int:
        return len(self._questions.features.lengths)

    def _input(self) -> tf.data.Dataset:
        reader = self._questions.reader(
            batch_size=len(self._batches.indices(0)),
            indices=self._batches.indices,
            positions_kept=self._batches.padded_length if self._length_buckets else None,
        )
        return dataset_of_positions(0, self._batches.num_batches, reader.read)


def _assemble(
    parts: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]], num_windows: int
) -> SpanCandidates:
    """Puts the candidates of some windows each at their places in the order of the records."""
    arrays: dict[str, np.ndarray] = {}
    for indices, values in parts:
        for name, value in values.items():
            if name not in arrays:
                arrays[name] = np.zeros((num_windows, *value.shape[1:]), value.dtype)
            arrays[name][indices] = value
    return SpanCandidates(**arrays)
