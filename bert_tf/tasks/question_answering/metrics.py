"""The official SQuAD metric: exact match and F1, v1.1 and v2.0.

Results are equal to those of the authors' scripts evaluate-v1.1.py and evaluate-v2.0.py, to the
last digit, unless the file is scored by characters (scores.scored_by).
"""

from __future__ import annotations

import functools
import json
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.tasks.question_answering.examples import SquadFile
from bert_tf.tasks.question_answering.scores import QuestionScore, question_scores
from bert_tf.tasks.question_answering.thresholds import official_best, with_threshold
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

    Args:
      squad: the data.
      answers: question id -> predicted answer; "" for no answer.
      null_odds: question id -> score of "no answer" over the best answer; implies v2.0.
      na_prob_thresh: with ``null_odds``, answers with larger odds count as "".
      version_2: whether v2.0's rules apply; None to decide by the data and ``null_odds``.

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
