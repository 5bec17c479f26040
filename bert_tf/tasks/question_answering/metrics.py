"""The official SQuAD metric: exact match and F1, v1.1 and v2.0, and thresholds of the null odds.

Results are equal to those of the authors' scripts evaluate-v1.1.py and evaluate-v2.0.py, to the
last digit, unless the file is scored by characters (scores.scored_by). In v2.0, the answer is ""
above a threshold of the null odds.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.tasks.question_answering.examples import SquadFile
from bert_tf.tasks.question_answering.scores import QuestionScore, question_scores
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import read_json, require_file


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
    value = _read_object(path, flag=flag)
    for question_id, answer in value.items():
        if not isinstance(answer, str):
            raise UserError(
                f"--{flag}: {path} must map question ids to texts, but maps "
                f"{short_repr(question_id)} to a {type(answer).__name__}; give a predictions.json."
            )
    return value


def read_null_odds(path: str, *, flag: str) -> dict[str, float]:
    """Reads a null_odds.json; raises UserError that names ``flag`` if it is invalid."""
    value = _read_object(path, flag=flag)
    for question_id, odds in value.items():
        if not _is_finite_number(odds):
            raise UserError(
                f"--{flag}: {path} must map question ids to finite numbers, but maps "
                f"{short_repr(question_id)} to {json.dumps(odds)[:40]}; give a null_odds.json."
            )
    return value


def _is_finite_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN as well


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
        dataclasses.replace(score, exact=_as_null(score), f1=_as_null(score))
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
    points = _all_points(squad, answers, null_odds)
    if len(points) <= max_points:
        return points
    chosen = set(np.linspace(0, len(points) - 1, max_points - 1).round().astype(int).tolist())
    return [points[index] for index in sorted(chosen | {_index_of_best_f1(points)})]


def best_threshold(curve: Sequence[ThresholdPoint]) -> ThresholdPoint:
    """The point of a :func:`threshold_curve` with the best F1; of ties, the lowest threshold.

    This is the threshold to set: the official ``best_f1_thresh``, except if it is best never to
    answer; it is then below all odds, and so has that effect.
    """
    return curve[_index_of_best_f1(curve)]


def _index_of_best_f1(points: Sequence[ThresholdPoint]) -> int:
    return max(range(len(points)), key=lambda index: points[index].f1)


def _all_points(
    squad: SquadFile, answers: Mapping[str, str], null_odds: Mapping[str, float]
) -> list[ThresholdPoint]:
    scores, odds = _rank(question_scores(squad, answers, version_2=True), null_odds)
    if not scores:
        raise UserError(
            f"no question of {squad.path} has a prediction; give the predictions for this file."
        )
    nulls = [_as_null(score) for score in scores]
    curves = []
    for values in ([score.exact for score in scores], [score.f1 for score in scores]):
        gains = [value - null for value, null in zip(values, nulls)]
        curves.append(100.0 * _running_sums(sum(nulls), gains) / len(scores))
    # A threshold applies to all questions with equal odds, so a point follows only their last.
    last = [i for i in range(len(odds)) if i + 1 == len(odds) or odds[i] != odds[i + 1]]
    below_all = min(odds[0] - 1.0, np.nextafter(odds[0], -np.inf))
    thresholds = [below_all, *(odds[i] for i in last)]
    indices = [0, *(i + 1 for i in last)]
    return [
        ThresholdPoint(float(threshold), float(curves[0][index]), float(curves[1][index]))
        for threshold, index in zip(thresholds, indices)
    ]


def _as_null(score: QuestionScore) -> float:
    """The score for answering with ""."""
    return float(not score.answerable)


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


def _running_sums(start: float, gains: Sequence[float]) -> np.ndarray:
    """[N + 1]: ``start`` and the sums after each gain, added in sequence."""
    return np.cumsum([start, *gains], dtype=np.float64)
