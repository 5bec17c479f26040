"""The evaluation of the span task: answering a SQuAD file with all ranks, scoring the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bert_tf.config.bert_config import BertConfig
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.records.sequences import SequenceRecords
from bert_tf.squad.answers import (
    AnswerSettings,
    Predictions,
    SpanCandidates,
    best_span_texts,
    decode_answers,
    write_predictions,
)
from bert_tf.squad.examples import SquadFile
from bert_tf.squad.metrics import evaluate
from bert_tf.squad.thresholds import official_best
from bert_tf.squad.windows import WindowSettings
from bert_tf.tasks.finetuning import PredictionEvaluation
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.evaluation import Figure

FIRST_OF = "questions_in_file"  # only where fewer are answered


@dataclasses.dataclass(frozen=True)
class Questions:
    """A file to answer, as records.

    Attributes:
      squad: its questions.
      features: the records of their windows.
      windows: how they were cut.
    """

    squad: SquadFile
    features: SequenceRecords
    windows: WindowSettings

    @property
    def are_scored(self) -> bool:
        """Whether the file knows the answers."""
        return is_scored(self.squad)


def is_scored(squad: SquadFile) -> bool:
    """Whether a file knows answers to compare with."""
    return any(example.answers or example.is_impossible for example in squad.examples)


class SpanEvaluation(PredictionEvaluation):
    """Predictions, their files and their scores; ``predictions`` are rank 0's last ones."""

    figure = Figure("f1", higher_is_better=True)

    def __init__(
        self,
        questions: Questions,
        tokenizer: Tokenizer,
        config: BertConfig,
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
          config: of the model that is to answer them.
          settings: how spans become answers.
          ranks, batch_size, length_buckets: as in :class:`PredictionEvaluation`.
        """
        super().__init__(
            questions.features,
            config,
            ranks=ranks,
            batch_size=batch_size,
            length_buckets=length_buckets,
            unit="windows",
        )
        self._questions = questions
        self._tokenizer = tokenizer
        self._settings = settings
        self.predictions: Predictions | None = None

    def score(self, predictions: dict[str, np.ndarray], output_dir: Path) -> Mapping[str, float]:
        """Scores of the answers, which are written; none where the file has no answers."""
        questions = self._questions
        squad = questions.squad
        candidates = SpanCandidates(**predictions)
        answered = self.predictions = decode_answers(
            squad, self._tokenizer, questions.windows, candidates, self._settings
        )
        version_2 = self._settings.version_2_with_negative
        write_predictions(output_dir, answered, version_2_with_negative=version_2)
        if not questions.are_scored:
            return {}
        # What predictions.json says is scored, by the rules that it was made by: a file without an
        # unanswerable question may have been answered with "" all the same.
        scores = evaluate(squad, answered.answers, version_2=version_2)
        if squad.first_of is not None:
            scores[FIRST_OF] = squad.first_of
        if not version_2:
            return scores
        # With every question's best span, the best thresholds are found as well.
        spans = best_span_texts(squad, answered)
        return {**scores, **official_best(squad, spans, answered.null_odds)}
