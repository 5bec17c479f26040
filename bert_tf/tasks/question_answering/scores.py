"""Scores of predicted answers by the rules of SQuAD v1.1 and v2.0, and by those of MLQA.

Rajpurkar et al. 2016, section 6.1, and 2018, section 5; details follow the authors' scripts
evaluate-v1.1.py and evaluate-v2.0.py. In languages without blanks between words, characters are
compared instead of words, as in the "mixed segmentation" of Chinese by MLQA's script
mlqa_evaluation_v1.py (Lewis et al. 2020).
"""

from __future__ import annotations

import dataclasses
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_tf.tasks.question_answering.examples import SquadFile

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Characters that are words by themselves: the ideographs of MLQA's script, and those of other
# scripts without blanks (kana, Thai, Lao, Burmese, Khmer).
_UNSPACED = re.compile(
    "[\u4e00-\u9fa5\u3041-\u309a\u309d-\u30fa\u30fc-\u30ff\u0e01-\u0e3a\u0e40-\u0e4e"
    "\u0e81-\u0ece\u1000-\u103f\u1050-\u108f\u1780-\u17d3]"
)
AUTO, WORDS, CHARACTERS = SCORE_UNITS = ("auto", "words", "characters")


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


def normalize_characters(text: str) -> str:
    """Lower-cases a text, removes all punctuation, and separates characters that need no blanks."""
    kept = (c for c in text.lower().translate(_PUNCTUATION) if unicodedata.category(c)[0] != "P")
    return " ".join(_UNSPACED.sub(r" \g<0> ", "".join(kept)).split())


def scored_by(squad: SquadFile, unit: str) -> SquadFile:
    """The file with the unit of its scores, one of ``SCORE_UNITS``.

    ``AUTO`` stands for characters if most of the true answers that have letters have some of a
    script without blanks between words.
    """
    texts = [answer.text for example in squad.examples for answer in example.answers]
    with_letters = sum(any(map(str.isalpha, text)) for text in texts)
    unspaced = sum(bool(_UNSPACED.search(text)) for text in texts)
    by_characters = unit == CHARACTERS or (unit == AUTO and 2 * unspaced > with_letters)
    return dataclasses.replace(squad, by_characters=by_characters)


def note_on_unit(squad: SquadFile) -> str:
    """How answers are scored, if not by SQuAD's rule; else ""."""
    if not squad.by_characters:
        return ""
    return (
        f"{squad.path.name}: answers are scored by characters, as MLQA scores Chinese; "
        "--score_by=words is SQuAD's rule"
    )


def question_scores(
    squad: SquadFile, answers: Mapping[str, str], *, version_2: bool
) -> list[QuestionScore]:
    """The scores of every question, in the order of the data.

    ``answers`` are by question id, "" for no answer. In v1.1 a question without a prediction scores
    0; in v2.0 it is left out, as in the official scripts. Raises UserError if a question has no
    true answer, which v1.1 requires.
    """
    if not version_2:
        squad.require_answers()
    normalize = normalize_characters if squad.by_characters else normalize_answer
    scores = []
    for example in squad.examples:
        golds = [normalize(gold.text) for gold in example.answers]
        answer = answers.get(example.question_id)
        if answer is not None:
            exact, f1 = (_scores_v2 if version_2 else _scores_v1)(golds, normalize(answer))
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
