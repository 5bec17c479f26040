"""``report.html`` of question answering: scores, charts, and every question with its answer."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from bert_tf.finetune.report import Report
from bert_tf.tasks.question_answering.answers import Answered, Predictions
from bert_tf.tasks.question_answering.examples import Example, SquadFile
from bert_tf.tasks.question_answering.metrics import (
    QuestionScore,
    ThresholdPoint,
    best_threshold,
)
from bert_tf.train.evaluation import Results
from bert_tf.util import page
from bert_tf.util.page import MIXED, Chart, Examples, Table

OUTCOMES = ("exact", "partly right", "wrong")
_MOST_CANDIDATES = 10  # of the n-best list; with more, pages of large files open slowly

# Name of a score in the results -> its name in large type.
_SHOWN_SCORES = {
    "f1": "F1",
    "exact_match": "Exact match",
    "HasAns_f1": "With an answer: F1",
    "NoAns_f1": "Without an answer: F1",
    "best_f1": "Best F1",
}

# Names of filters, by which tables group the questions, too.
_OUTCOME, _TYPE, _LENGTH = "Outcome", "Question type", "Answer length"
# The maximum number of words in each group of answers, and the group's name.
_LENGTHS = ((0, "no answer"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"))
_LONGEST = "11+"
_HOW_MANY, _OTHER = "how many/much", "other"
_QUESTION_WORDS = {"whom": "who", "whose": "who"} | {
    word: word for word in ("who", "what", "when", "where", "which", "why", "how")
}
_GROUPS = {
    _OUTCOME: OUTCOMES,
    _LENGTH: (*(name for _, name in _LENGTHS), _LONGEST),
    _TYPE: ("who", "what", "when", "where", "which", "why", _HOW_MANY, "how", _OTHER),
}
_ORDERS = ("worst F1 first", "best F1 first", "most confident wrong first")
_DEVIATIONS = 1.96  # 95 % of a normal distribution lies within so many of its mean


def report_of(
    squad: SquadFile,
    scores: Sequence[QuestionScore],
    predictions: Predictions,
    results: Results,
    curve: Sequence[ThresholdPoint],
) -> Report:
    """The report on the questions of a file, all of which have scores.

    ``curve`` is from ``metrics.threshold_curve``, empty for SQuAD 1.1.
    """
    shown = [
        shown_question(example, score, predictions.of_question[example.question_id])
        for example, score in zip(squad.examples, scores)
    ]
    return Report(
        f"Question answering: {squad.path.name}",
        results,
        _SHOWN_SCORES,
        {"questions": squad},
        Examples("Questions", shown, (MIXED, "as in the file", *_ORDERS)),
        [group_table(name, scores, shown) for name in _GROUPS],
        [threshold_chart(curve, predictions.threshold)] if curve else [],
        digits=2,
        y_label="percent",
    )


def shown_question(example: Example, score: QuestionScore, answered: Answered) -> page.Example:
    """A question with its answer, as the page shows it."""
    predicted, span, odds = answered.text, answered.span, answered.null_odds
    nbest = [(entry["text"], entry["probability"]) for entry in answered.nbest]
    confidence = next((p for text, p in nbest if text == predicted), 0.0)
    verdict, kind = outcome(score), question_type(example.question)
    article = example.title.replace("_", " ")
    # Answers that are not found at their offset in the context are left out.
    true = {
        (start, start + len(text))
        for text, start in example.answers
        if text and start >= 0 and example.context.startswith(text, start)
    }
    keys = (score.f1, -score.f1, -OUTCOMES.index(verdict) - confidence)
    return page.Example(
        example.question_id,
        example.question,
        example.context,
        marks={"true": sorted(true), "predicted": [span] if span and predicted else []},
        answers={
            "true": list(dict.fromkeys(text for text, _ in example.answers)),
            "predicted": [predicted] if predicted else [],
        },
        facts=[
            *(verdict, f"F1 {100 * score.f1:.1f}", kind, article),
            *([] if odds is None else [f"null odds {odds:.4g}"]),
        ],
        filters={
            _OUTCOME: verdict,
            _TYPE: kind,
            _LENGTH: answer_length(example, score),
            "Answerable": "yes" if score.answerable else "no",
            "Article": article,
        },
        orders=dict(zip(_ORDERS, keys)),
        candidates=nbest[:_MOST_CANDIDATES],
    )


def outcome(score: QuestionScore) -> str:
    """One of ``OUTCOMES``; a wrong answer has no word in common with a true one."""
    if score.exact >= 1:
        return OUTCOMES[0]
    return OUTCOMES[1] if score.f1 > 0 else OUTCOMES[2]


def question_type(question: str) -> str:
    """The group of the first question word anywhere in a question."""
    words = re.findall(r"[a-z]+", question.lower())
    for word, following in zip(words, [*words[1:], ""]):
        if word == "how" and following in ("many", "much"):
            return _HOW_MANY
        if word in _QUESTION_WORDS:
            return _QUESTION_WORDS[word]
    return _OTHER


def answer_length(example: Example, score: QuestionScore) -> str:
    """The group for the number of words, separated by blanks, in the first true answer."""
    if not score.answerable or not example.answers:
        return _LENGTHS[0][1]
    num_words = max(1, len(example.answers[0].text.split()))
    return next((name for limit, name in _LENGTHS if num_words <= limit), _LONGEST)


def group_table(name: str, scores: Sequence[QuestionScore], shown: Sequence[page.Example]) -> Table:
    """The scores of each group of questions that has any, by one of their filters."""
    members: dict[str, list[QuestionScore]] = {group: [] for group in _GROUPS[name]}
    for score, example in zip(scores, shown):
        members[example.filters[name]].append(score)
    rows = [
        (
            group,
            f"{len(of_group):,}",
            f"{100 * len(of_group) / len(scores):.1f}",
            *_mean([score.f1 for score in of_group]),
            *_mean([score.exact for score in of_group]),
        )
        for group, of_group in members.items()
        if of_group
    ]
    columns = (name.lower(), "questions", "percent", "F1", "95 %", "exact", "95 %")
    return Table(f"{name}, with 95 % intervals", columns, rows, filter_name=name)


def _mean(values: Sequence[float]) -> tuple[str, str]:
    """The mean of scores from 0 to 1 in percent, and its interval."""
    mean = statistics.fmean(values)
    low, high = interval(mean, len(values))
    return f"{100 * mean:.1f}", f"{100 * low:.1f}–{100 * high:.1f}"


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a mean score from 0 to 1 over ``count`` questions.

    Wilson's interval for a proportion; a mean F1, of values between 0 and 1, varies no more.
    """
    z2 = _DEVIATIONS**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    spread = math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) * _DEVIATIONS
    half = spread / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def threshold_chart(curve: Sequence[ThresholdPoint], chosen: float) -> Chart:
    """Scores over the threshold of "no answer", with the chosen and the best threshold."""
    best = best_threshold(curve).threshold
    # Scores do not change below the first and above the last threshold.
    first, last = curve[0]._replace(threshold=chosen), curve[-1]._replace(threshold=chosen)
    points = [
        *([first] if chosen < curve[0].threshold else []),
        *curve,
        *([last] if chosen > curve[-1].threshold else []),
    ]
    return Chart(
        "Threshold of “no answer”",
        "score of no answer − score of the best answer",
        "percent",
        {
            "F1": [(point.threshold, point.f1) for point in points],
            "exact match": [(point.threshold, point.exact) for point in points],
        },
        markers=[
            (f"chosen threshold {chosen:.3f}", chosen),
            (f"best F1 at threshold {best:.3f}", best),
        ],
        note="Questions are answered unless this difference is above the threshold.",
    )
