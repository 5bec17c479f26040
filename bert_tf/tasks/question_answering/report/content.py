"""The contents of a SQuAD report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bert_tf.tasks.question_answering.thresholds import ThresholdPoint, best_threshold

Span = tuple[int, int]

OUTCOMES = ("exact", "partly right", "wrong")


@dataclass(frozen=True)
class QuestionRow:
    """A question with its true answers and the model's answer.

    Characters are code points, as in Python, and spans are [start, end) in the context.
    ``answers`` are (text, start in the context), empty for a question without an answer; an empty
    ``predicted_text`` means no answer. ``f1`` and ``exact`` are from 0 to 1. ``null_odds`` is the
    score of "no answer" minus that of the best answer, and ``nbest`` lists (text, probability),
    best first. Raises ValueError if a span is outside the context.
    """

    question_id: str
    title: str
    question: str
    context: str
    answers: Sequence[tuple[str, int]]
    predicted_text: str
    predicted_span: Span | None
    f1: float
    exact: float
    answerable: bool
    null_odds: float | None = None
    nbest: Sequence[tuple[str, float]] = ()

    def __post_init__(self) -> None:
        if self.predicted_span is None:
            return
        start, end = self.predicted_span
        if not 0 <= start <= end <= len(self.context):
            raise ValueError(
                f"the predicted span {start} to {end} of question {self.question_id} is "
                f"outside its context of {len(self.context)} characters"
            )

    @property
    def true_spans(self) -> list[Span]:
        """The distinct spans of the true answers, from left to right.

        Answers that are not found at their offset in the context are left out.
        """
        found = {
            (start, start + len(text))
            for text, start in self.answers
            if text and start >= 0 and self.context.startswith(text, start)
        }
        return sorted(found)

    @property
    def shown_span(self) -> Span | None:
        """The predicted span; None if the prediction is "no answer"."""
        return self.predicted_span if self.predicted_text else None

    @property
    def outcome(self) -> str:
        """``exact``; ``partly right``; or ``wrong``, with no word in common with a true answer."""
        if self.exact >= 1:
            return "exact"
        return "partly right" if self.f1 > 0 else "wrong"

    @property
    def confidence(self) -> float:
        """The probability of the predicted text in the n-best list; 0 if it is not there."""
        matches = (p for text, p in self.nbest if text == self.predicted_text)
        probability = next(matches, 0.0)
        return probability if math.isfinite(probability) else 0.0


@dataclass(frozen=True)
class ReportData:
    """All data of a report; empty or missing values are left out of the page.

    ``created_from`` describes the model, its training and the data; ``settings`` has less important
    flags. ``results`` has the keys of the official scripts, in percent. ``threshold_curve`` comes
    from ``question_answering.thresholds``, and ``chosen_threshold`` is the one used for the
    predictions. The logs are the lines of log.jsonl and eval_log.jsonl. ``seed_scores`` has the
    results of each seed.
    """

    title: str
    created_from: Mapping[str, object]
    results: Mapping[str, float]
    questions: Sequence[QuestionRow]
    threshold_curve: Sequence[ThresholdPoint] = ()
    chosen_threshold: float | None = None
    training_log: Sequence[Mapping[str, float]] = ()
    evaluation_log: Sequence[Mapping[str, float]] = ()
    seed_scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def best_threshold(self) -> ThresholdPoint | None:
        """The point of the curve with the best F1; None without a curve."""
        return best_threshold(self.threshold_curve) if self.threshold_curve else None
