"""What a SQuAD report is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Span = tuple[int, int]

OUTCOMES = ("exact", "partly right", "wrong")


@dataclass(frozen=True)
class QuestionRow:
    """A question with its true answers and what a model answered.

    Characters are counted as Python counts them (code points) and spans are [start, end) in the
    context. ``answers`` are (text, start in the context), none for a question without an answer;
    an empty ``predicted_text`` says that there is none. ``f1`` and ``exact`` lie in 0 to 1.
    ``null_odds`` is the score of "no answer" less that of the best answer, and ``nbest`` holds
    (text, probability), best first. Raises ValueError for a span outside the context.
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

    def __post_init__(self):
        if self.predicted_span is None:
            return
        start, end = self.predicted_span
        if not 0 <= start <= end <= len(self.context):
            raise ValueError(
                f"the predicted span {start} to {end} of question {self.question_id} lies "
                f"outside its context of {len(self.context)} characters"
            )

    @property
    def true_spans(self) -> list[Span]:
        """Where the true answers stand, without repetition, from left to right.

        An answer that the context does not hold at its offset has no span.
        """
        found = {
            (start, start + len(text))
            for text, start in self.answers
            if text and start >= 0 and self.context.startswith(text, start)
        }
        return sorted(found)

    @property
    def shown_span(self) -> Span | None:
        """The predicted span, None where the model says that there is no answer."""
        return self.predicted_span if self.predicted_text else None

    @property
    def outcome(self) -> str:
        """``exact``, ``partly right`` or ``wrong``: no word in common with a true answer."""
        if self.exact >= 1:
            return "exact"
        return "partly right" if self.f1 > 0 else "wrong"

    @property
    def confidence(self) -> float:
        """The probability of the predicted text among the n best; 0 when it is not there."""
        chances = (chance for text, chance in self.nbest if text == self.predicted_text)
        chance = next(chances, 0.0)
        return chance if math.isfinite(chance) else 0.0


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows; what is empty or None is left out of the page.

    ``created_from`` names the model, the data and what made them, ``settings`` the flags of less
    interest. ``results`` has the
    official scripts' keys, in percent. ``threshold_curve`` holds (threshold, exact, f1), the
    scores in percent, and ``chosen_threshold`` is the one that made the predictions. The logs are
    the lines of log.jsonl and eval_log.jsonl. ``seed_scores`` are the results of one seed each.
    """

    title: str
    created_from: Mapping[str, object]
    results: Mapping[str, float]
    questions: Sequence[QuestionRow]
    threshold_curve: Sequence[tuple[float, float, float]] = ()
    chosen_threshold: float | None = None
    training_log: Sequence[Mapping[str, float]] = ()
    evaluation_log: Sequence[Mapping[str, float]] = ()
    seed_scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
