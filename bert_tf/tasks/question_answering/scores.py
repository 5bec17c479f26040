"""Scores of predicted answers by the rules of SQuAD v1.1 and v2.0.

Rajpurkar et al. 2016, section 6.1, and 2018, section 5; details follow the authors' scripts
evaluate-v1.1.py and evaluate-v2.0.py.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_tf.tasks.question_answering.examples import SquadFile

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclasses.dataclass(frozen=True)
class QuestionScore:
    """The scores of an answer, from 0 to 1, each the best over the question's true answers."""

    question_id: str
    exact: float
    f1: float
    answerable: bool


def normalize_answer(text: str) -> str:
    """Lower-cases a text and removes ASCII punctuation, articles and repeated blanks."""
    # The order matters: "the-end" becomes one word, "theend", and keeps its article.
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def question_scores(
    squad: SquadFile, answers: Mapping[str, str], *, version_2: bool
) -> list[QuestionScore]:
    """The scores of every question, in the order of the data.

    In v1.1 a question without a prediction scores 0; in v2.0 it is left out, as in the official
    scripts.

    Args:
      squad: the data.
      answers: question id -> answer; "" for no answer.
      version_2: whether to use the rules of v2.0, also for data without unanswerable questions,
        rather than those of v1.1.

    Raises:
      UserError: if a question has no true answer, which v1.1 requires.
    """
    if not version_2:
        squad.require_answers()
    scores = []
    for example in squad.examples:
        golds = [normalize_answer(gold.text) for gold in example.answers]
        answer = answers.get(example.question_id)
        if answer is not None:
            exact, f1 = (_scores_v2 if version_2 else _scores_v1)(golds, normalize_answer(answer))
        elif version_2:
            continue
        else:
            exact = f1 = 0.0
        scores.append(QuestionScore(example.question_id, exact, f1, bool(golds)))
    return scores


def _scores_v1(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1; two answers without words match exactly, but have an F1 of 0."""
    return float(answer in golds), max(_f1(gold.split(), answer.split()) for gold in golds)


def _scores_v2(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1; if no true answer has words, "" scores 1 and all else 0."""
    golds = [gold for gold in golds if gold] or [""]
    if not answer:
        agrees = float(golds == [""])
        return agrees, agrees
    return _scores_v1(golds, answer)


def _f1(gold: Sequence[str], answer: Sequence[str]) -> float:
    """The harmonic mean of precision and recall over words, counting repetitions."""
    common = sum((Counter(gold) & Counter(answer)).values())
    if common == 0:
        return 0.0
    precision = common / len(answer)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)
