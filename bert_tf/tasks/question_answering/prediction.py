"""Evaluation of the span task: answers a SQuAD file on all ranks and scores the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import require_record, write_record
from bert_tf.ranks.ranks import Ranks
from bert_tf.tasks.finetuning.run import PredictionEvaluation
from bert_tf.tasks.question_answering.answers import (
    Predictions,
    SpanCandidates,
    best_span_texts,
    decode_answers,
    write_predictions,
)
from bert_tf.tasks.question_answering.features import Questions
from bert_tf.tasks.question_answering.metrics import evaluate
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.tasks.question_answering.thresholds import (
    best_threshold,
    official_best,
    threshold_curve,
)
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.train.evaluation import Figure

FIRST_OF = "questions_in_file"  # only if not all of them are answered


class SpanEvaluation(PredictionEvaluation):
    """Predicts, writes and scores answers.

    Attributes:
      predictions: the answers of the last evaluation, on rank 0.
    """

    figure = Figure("f1", higher_is_better=True)

    def __init__(
        self,
        questions: Questions,
        tokenizer: Tokenizer,
        config: BertConfig,
        *,
        settings: AnswerSettings,
        ranks: Ranks,
        tunes: bool = False,
        is_given: bool = False,
        batch_size: int,
        few_lengths: bool = False,
    ) -> None:
        """Prepares to answer ``questions``.

        Args:
          questions: the questions to answer.
          tokenizer: the tokenizer that the records were made with.
          config: the network's configuration.
          settings: how answers are chosen among spans.
          tunes: whether to choose the threshold that is best for the questions, and store it.
          is_given: whether the user gave the threshold of ``settings``, so that it is stored.
          ranks, batch_size, few_lengths: as in :class:`PredictionEvaluation`.
        """
        super().__init__(
            questions.features,
            config,
            ranks=ranks,
            batch_size=batch_size,
            few_lengths=few_lengths,
            unit="windows",
        )
        self._questions = questions
        self._tokenizer = tokenizer
        self._settings, self._tunes, self._is_given = settings, tunes, is_given
        self.predictions: Predictions | None = None

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Writes the answers and returns their scores; empty if the file has no answers."""
        questions = self._questions
        squad = questions.squad
        candidates = SpanCandidates(**predictions)
        settings, version_2 = self._settings, self._settings.version_2_with_negative
        answered = self._answered(candidates, settings)
        spans = best_span_texts(squad, answered) if version_2 and questions.are_scored else {}
        if spans and self._tunes:
            best = best_threshold(threshold_curve(squad, spans, answered.null_odds)).threshold
            settings = dataclasses.replace(settings, null_score_diff_threshold=best)
            answered = self._answered(candidates, settings)
        self.predictions = answered
        if version_2 and (self._tunes or self._is_given):
            _store(settings, output_dir)
        write_predictions(output_dir, answered, version_2_with_negative=version_2)
        if not questions.are_scored:
            return {}
        # The scores are those of predictions.json, under the rules it was made with: the answer can
        # be "" even in a file without unanswerable questions.
        scores = evaluate(squad, answered.answers, version_2=version_2)
        if squad.first_of is not None:
            scores[FIRST_OF] = squad.first_of
        if not version_2:
            return scores
        # Every question's best span is known, so the best thresholds can be computed too.
        return {**scores, **official_best(squad, spans, answered.null_odds)}

    def _answered(self, candidates: SpanCandidates, settings: AnswerSettings) -> Predictions:
        questions = self._questions
        return decode_answers(
            questions.squad, self._tokenizer, questions.windows, candidates, settings
        )


def _store(settings: AnswerSettings, output_dir: Path) -> None:
    """Stores the threshold with the model."""
    record = require_record(output_dir)
    kept = {**record.settings, "null_score_diff_threshold": settings.null_score_diff_threshold}
    if kept != record.settings:
        write_record(dataclasses.replace(record, settings=kept))
