"""Scores of a predicted answer: the rules of SQuAD v1.1 and v2.0.

Rajpurkar et al. 2016, section 6.1, and 2018, section 5, in the details as the authors' scripts
evaluate-v1.1.py and evaluate-v2.0.py.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_tf.errors import UserError
from bert_tf.squad.examples import SquadFile

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclasses.dataclass(frozen=True)
class QuestionScore:
    """Scores of one answer, the best over the question's true answers; each from 0 to 1."""

    question_id: str
    exact: float
    f1: float
    answerable: bool


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and more than single blanks."""
    # In this order: "the-end" becomes one word, "theend", and keeps its article.
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def question_scores(
    squad: SquadFile, answers: Mapping[str, str], *, version_2: bool
) -> list[QuestionScore]:
    """Scores of every question, in the order of the data.

    A question without a prediction counts as 0 in v1.1 and does not count in v2.0, as in the
    official scripts.

    Args:
      squad: the data.
      answers: question id to answer; "" says that there is none.
      version_2: whether by the rules of v2.0, which data without an unanswerable question have as
        well, or by those of v1.1.

    Raises:
      UserError: v1.1, and the data do not have an answer to every question.
    """
    scores = []
    for example in squad.examples:
        golds = [normalize_answer(gold.text) for gold in example.answers]
        answer = answers.get(example.question_id)
        if not version_2 and not golds:
            raise UserError(
                f"{squad.path} has no answer to question {example.question_id!r}, so that nothing "
                "can be scored; give a file with answers."
            )
        if answer is not None:
            exact, f1 = (_scores_v2 if version_2 else _scores_v1)(golds, normalize_answer(answer))
        elif version_2:
            continue
        else:
            exact = f1 = 0.0
        scores.append(QuestionScore(example.question_id, exact, f1, bool(golds)))
    return scores


def _scores_v1(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1; two answers without a word are equal but have an F1 of 0."""
    return float(answer in golds), max(_f1(gold.split(), answer.split()) for gold in golds)


def _scores_v2(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1; "" is the true answer where none has a word, and 1 if it is given."""
    golds = [gold for gold in golds if gold] or [""]
    if not answer:
        agrees = float(golds == [""])
        return agrees, agrees
    return _scores_v1(golds, answer)


def _f1(gold: Sequence[str], answer: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, each as often as it occurs."""
    common = sum((Counter(gold) & Counter(answer)).values())
    if common == 0:
        return 0.0
    precision = common / len(answer)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)
