"""Scores by answer length and question type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bert_tf.tasks.question_answering.report.content import QuestionRow

# The maximum number of words in each group, and the group's name.
_LENGTHS = ((0, "no answer"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"))
_LONGEST = "11+"
LENGTH_NAMES = (*(name for _, name in _LENGTHS), _LONGEST)

_HOW_MANY = "how many/much"
_OTHER = "other"
_QUESTION_WORDS = {
    "who": "who",
    "whom": "who",
    "whose": "who",
    "what": "what",
    "when": "when",
    "where": "where",
    "which": "which",
    "why": "why",
    "how": "how",
}
TYPE_NAMES = ("who", "what", "when", "where", "which", "why", _HOW_MANY, "how", _OTHER)


# 95 % of a normal distribution lies within this many standard deviations of the mean.
_DEVIATIONS = 1.96


class Group(NamedTuple):
    """A group of questions with their mean scores in percent."""

    name: str
    size: int
    exact: float
    f1: float


def interval(score: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a score in percent over ``count`` questions.

    Wilson's interval for a proportion; a mean F1, of values between 0 and 1, varies no more.
    """
    share, z2 = score / 100, _DEVIATIONS**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    spread = math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) * _DEVIATIONS
    half = spread / (1 + z2 / count)
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)


def answer_length(row: QuestionRow) -> str:
    """The group for the number of words, separated by blanks, in the first true answer."""
    if not row.answerable or not row.answers:
        return _LENGTHS[0][1]
    num_words = max(1, len(row.answers[0][0].split()))
    return next((name for limit, name in _LENGTHS if num_words <= limit), _LONGEST)


def question_type(row: QuestionRow) -> str:
    """The group of the first question word anywhere in the question."""
    words = re.findall(r"[a-z]+", row.question.lower())
    for word, following in zip(words, [*words[1:], ""]):
        if word == "how" and following in ("many", "much"):
            return _HOW_MANY
        if word in _QUESTION_WORDS:
            return _QUESTION_WORDS[word]
    return _OTHER


def groups_by(
    group_of: Callable[[QuestionRow], str], names: Sequence[str], questions: Sequence[QuestionRow]
) -> list[Group]:
    """The non-empty groups, in the order of ``names``."""
    members: dict[str, list[QuestionRow]] = {name: [] for name in names}
    for row in questions:
        members[group_of(row)].append(row)
    return [
        Group(
            name,
            len(rows),
            100 * sum(row.exact for row in rows) / len(rows),
            100 * sum(row.f1 for row in rows) / len(rows),
        )
        for name, rows in members.items()
        if rows
    ]
