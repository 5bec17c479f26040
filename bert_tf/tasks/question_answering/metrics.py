"""The SQuAD metric: exact match and F1, v1.1 and v2.0, and thresholds of the null odds.

Rajpurkar et al. 2016, section 6.1, and 2018, section 5. Results are equal to those of the authors'
scripts evaluate-v1.1.py and evaluate-v2.0.py, to the last digit. In v2.0, the answer is "" above a
threshold of the null odds. In languages without blanks between words, characters are compared
instead of words, as in the "mixed segmentation" of Chinese by MLQA's script mlqa_evaluation_v1.py
(Lewis et al. 2020).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.tasks.question_answering.examples import AUTO, CHARACTERS, SquadFile
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import read_json, require_file

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Characters that are words by themselves: the ideographs of MLQA's script, and those of other
# scripts without blanks (kana, Thai, Lao, Burmese, Khmer).
_UNSPACED = re.compile(
    "[\u4e00-\u9fa5\u3041-\u309a\u309d-\u30fa\u30fc-\u30ff\u0e01-\u0e3a\u0e40-\u0e4e"
    "\u0e81-\u0ece\u1000-\u103f\u1050-\u108f\u1780-\u17d3]"
)


class QuestionScore(NamedTuple):
    """The scores of an answer, from 0 to 1, each the best over the question's true answers."""

    question_id: str
    exact: float
    f1: float
    answerable: bool

    @property
    def of_null(self) -> float:
        """The score of answering with ""."""
        return float(not self.answerable)


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


def questions_without_answer(squad: SquadFile, answers: Mapping[str, str]) -> list[str]:
    """Ids of the questions without a prediction."""
    return [example.question_id for example in squad.examples if example.question_id not in answers]


def evaluate(
    squad: SquadFile,
    answers: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    *,
    na_prob_thresh: float = 1.0,
    version_2: bool | None = None,
) -> dict[str, float]:
    """Computes the result of the official scripts, in percent and under their keys.

    ``answers``, "" for none, and ``null_odds`` are by question id; odds, the score of "no answer"
    over the best answer, imply v2.0. Answers with odds above ``na_prob_thresh`` count as
    "". With ``version_2`` None, the data and ``null_odds`` decide on the rules.

    Returns:
      ``exact_match``, ``f1`` and ``total``. v2.0 adds ``exact`` (again), the same for questions
      with (``HasAns_``) and without (``NoAns_``) an answer and, with ``null_odds``, the best scores
      over all thresholds: ``best_exact``, ``best_exact_thresh``, ``best_f1``, ``best_f1_thresh``
      (0.0 if it is best never to answer).

    Raises:
      UserError: if no question has a prediction, or a question with a prediction has no odds.
    """
    if not any(example.question_id in answers for example in squad.examples):
        raise UserError(
            f"none of the predictions is for a question of {squad.path}; give the predictions "
            "for this file."
        )
    if version_2 is None:
        version_2 = squad.has_unanswerable or null_odds is not None
    raw = question_scores(squad, answers, version_2=version_2)
    if not version_2:
        return {
            "exact_match": _percent([score.exact for score in raw]),
            "f1": _percent([score.f1 for score in raw]),
            "total": len(raw),
        }
    if null_odds is None:
        return _breakdown(raw)
    return {
        **_breakdown(with_threshold(raw, null_odds, na_prob_thresh)),
        **official_best(squad, answers, null_odds),
    }


def _percent(values: Sequence[float]) -> float:
    # Added one by one: sum() compensates for rounding since Python 3.12, so the last digits of
    # published metrics would depend on the version of Python.
    return 100.0 * functools.reduce(operator.add, values, 0.0) / len(values)


def _breakdown(scores: Sequence[QuestionScore]) -> dict[str, float]:
    groups = {
        "": scores,
        "HasAns_": [score for score in scores if score.answerable],
        "NoAns_": [score for score in scores if not score.answerable],
    }
    result = {"exact_match": _percent([score.exact for score in scores])}
    for prefix, group in groups.items():
        if group:
            result[f"{prefix}exact"] = _percent([score.exact for score in group])
            result[f"{prefix}f1"] = _percent([score.f1 for score in group])
            result[f"{prefix}total"] = len(group)
    return result


def read_answers(path: str, *, flag: str) -> dict[str, str]:
    """Reads a predictions.json; raises UserError that names ``flag`` if it is invalid."""
    texts = _read_object(path, flag=flag)
    for question_id, text in texts.items():
        if not isinstance(text, str):
            raise _unfit(path, flag, question_id, text, "texts", "predictions.json")
    return texts


def read_null_odds(path: str, *, flag: str) -> dict[str, float]:
    """Reads a null_odds.json; raises UserError that names ``flag`` if it is invalid."""
    numbers = _read_object(path, flag=flag)
    for question_id, odds in numbers.items():
        is_number = isinstance(odds, (int, float)) and not isinstance(odds, bool)
        if not (is_number and abs(odds) <= sys.float_info.max):  # false for NaN as well
            raise _unfit(path, flag, question_id, odds, "finite numbers", "null_odds.json")
    return numbers


def _unfit(path: str, flag: str, key: str, value: Any, wanted: str, name: str) -> UserError:
    return UserError(
        f"--{flag}: {path} must map question ids to {wanted}, but maps {short_repr(key)} to "
        f"{json.dumps(value)[:40]}; give a {name}."
    )


def _read_object(path: str, *, flag: str) -> dict[str, Any]:
    value = read_json(require_file(path, flag=flag), what=f"--{flag}")
    if not isinstance(value, dict):
        raise UserError(
            f"--{flag}: {path} is not a JSON object with question ids as keys; give another file."
        )
    return value


class ThresholdPoint(NamedTuple):
    """Exact match and F1 in percent at a null_score_diff_threshold."""

    threshold: float
    exact: float
    f1: float


def with_threshold(
    scores: Sequence[QuestionScore], null_odds: Mapping[str, float], threshold: float
) -> list[QuestionScore]:
    """The scores if every question with odds above ``threshold`` is answered with "".

    Raises UserError if a question has no odds.
    """
    _require_odds(scores, null_odds)
    return [
        score._replace(exact=score.of_null, f1=score.of_null)
        if null_odds[score.question_id] > threshold
        else score
        for score in scores
    ]


def official_best(
    squad: SquadFile, answers: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """The best scores of evaluate-v2.0.py, in percent, with their thresholds and under its keys.

    As that script does, this tries a threshold after each question, even between equal odds, counts
    any answer but "" to an unanswerable question as wrong, starts with all unanswerable questions
    counted as right, and returns the threshold 0.0 if it is best never to answer.
    """
    scores, odds = _rank(question_scores(squad, answers, version_2=True), null_odds)
    unanswerable = sum(not example.answers for example in squad.examples)
    result = {}
    for name in ("exact", "f1"):
        gains = [
            getattr(score, name) if score.answerable else -float(bool(answers[score.question_id]))
            for score in scores
        ]
        sums = _running_sums(unanswerable, gains)
        best = int(np.argmax(sums))  # the first of equal ones
        result[f"best_{name}"] = 100.0 * float(sums[best]) / len(scores)
        result[f"best_{name}_thresh"] = odds[best - 1] if best else 0.0
    return result


def threshold_curve(
    squad: SquadFile,
    answers: Mapping[str, str],
    null_odds: Mapping[str, float],
    *,
    max_points: int = 200,
) -> list[ThresholdPoint]:
    """Exact match and F1 as functions of the threshold above which the answer is "".

    ``answers`` are the best ones other than "", by question id, and ``null_odds`` the null scores
    minus theirs. Returns 2 to ``max_points`` points in order of increasing threshold. The first is
    below all odds, so that every answer is "". The others are odds in the data, spaced by equal
    numbers of questions; at the last one all questions are answered. The point with the best F1 is
    always included.
    """
    scores, odds = _rank(question_scores(squad, answers, version_2=True), null_odds)
    if not scores:
        raise UserError(
            f"no question of {squad.path} has a prediction; give the predictions for this file."
        )
    nulls = [score.of_null for score in scores]
    exact, f1 = (
        100.0 * _running_sums(sum(nulls), np.subtract(values, nulls)) / len(scores)
        for values in ([score.exact for score in scores], [score.f1 for score in scores])
    )
    # A threshold applies to all questions with equal odds, so a point follows only their last.
    last = [i for i in range(len(odds)) if i + 1 == len(odds) or odds[i] != odds[i + 1]]
    below_all = min(odds[0] - 1.0, np.nextafter(odds[0], -np.inf))
    points = [
        ThresholdPoint(float(threshold), float(exact[index]), float(f1[index]))
        for threshold, index in [(below_all, 0), *((odds[i], i + 1) for i in last)]
    ]
    if len(points) <= max_points:
        return points
    chosen = set(np.linspace(0, len(points) - 1, max_points - 1).round().astype(int).tolist())
    return [points[index] for index in sorted(chosen | {points.index(best_threshold(points))})]


def best_threshold(curve: Sequence[ThresholdPoint]) -> ThresholdPoint:
    """The point of a :func:`threshold_curve` with the best F1; of ties, the lowest threshold.

    This is the threshold to set: the official ``best_f1_thresh``, except if it is best never to
    answer; it is then below all odds, and so has that effect.
    """
    return max(curve, key=lambda point: point.f1)


def _rank(
    scores: Sequence[QuestionScore], null_odds: Mapping[str, float]
) -> tuple[list[QuestionScore], list[float]]:
    """Scored questions in order of increasing null odds, and these odds."""
    _require_odds(scores, null_odds)
    by_id = {score.question_id: score for score in scores}
    # Equal odds keep the order of the mapping.
    ids = [key for key in sorted(null_odds, key=null_odds.__getitem__) if key in by_id]
    return [by_id[key] for key in ids], [null_odds[key] for key in ids]


def _require_odds(scores: Sequence[QuestionScore], null_odds: Mapping[str, float]) -> None:
    missing = [score.question_id for score in scores if score.question_id not in null_odds]
    if missing:
        raise UserError(
            f"the null odds lack {len(missing)} questions that have a prediction, such as "
            f"{missing[0]}; give the null odds written together with the predictions."
        )


def _running_sums(start: float, gains: Sequence[float] | np.ndarray) -> np.ndarray:
    """[N + 1]: ``start`` and the sums after each gain, added in sequence."""
    return np.cumsum([start, *gains], dtype=np.float64)
