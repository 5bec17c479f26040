"""Thresholds of the null odds, above which the answer is "", as in SQuAD v2.0."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.tasks.question_answering.examples import SquadFile
from bert_tf.tasks.question_answering.scores import QuestionScore, question_scores
from bert_tf.util.errors import UserError


class ThresholdPoint(NamedTuple):
    """Exact match and F1 in percent at a null_score_diff_threshold."""

    threshold: float
    exact: float
    f1: float


def with_threshold(
    scores: Sequence[QuestionScore], null_odds: Mapping[str, float], threshold: float
) -> list[QuestionScore]:
    """The scores if every question with odds above ``threshold`` is answered with "".

    Raises:
      UserError: if a question has no odds.
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

    Args:
      squad: the data, v2.0.
      answers: question id -> best answer other than "", regardless of thresholds.
      null_odds: question id -> null score minus the score of that answer.
      max_points: maximum number of thresholds, at least 2.

    Returns:
      Points in order of increasing threshold. The first is below all odds, so that every answer is
      "". The others are odds in the data, spaced by equal numbers of questions; at the last one all
      questions are answered. The point with the best F1 is always included.
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


class _Ranked(NamedTuple):
    """Scored questions in order of increasing null odds, and these odds."""

    scores: list[QuestionScore]
    odds: list[float]


def _rank(scores: Sequence[QuestionScore], null_odds: Mapping[str, float]) -> _Ranked:
    _require_odds(scores, null_odds)
    by_id = {score.question_id: score for score in scores}
    # Equal odds keep the order of the mapping.
    ids = [key for key in sorted(null_odds, key=null_odds.__getitem__) if key in by_id]
    return _Ranked([by_id[key] for key in ids], [null_odds[key] for key in ids])


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
