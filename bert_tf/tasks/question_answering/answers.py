"""Decodes span logits to answers that are extracted from the text.

The rules are those of google-research/bert's run_squad.py: the best pairs of a first and a last
token over all windows of a question compete, in v2.0 with "no answer" too. Unlike there, an answer
is the exact text between two characters of the paragraph, not reconstructed from tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.tasks.question_answering.examples import Example, SquadFile
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.tasks.question_answering.spans import (
    RankedAnswer,
    SpanCandidates,
    possible_spans,
    rank_answers,
)
from bert_tf.tasks.question_answering.windows import Window, WindowSettings, question_windows
from bert_tf.text.tokenizer import Encoding, Tokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, atomic_open

PREDICTIONS_NAME = "predictions.json"
NBEST_NAME = "nbest_predictions.json"
NULL_ODDS_NAME = "null_odds.json"


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Answers by question id, in the order of the data.

    Attributes:
      answers: the answers; "" for no answer.
      nbest: at least one answer, best first, each with ``text``, ``probability`` among the listed
        answers, ``start_logit``, ``end_logit`` and, if extracted from the context, the characters
        ``start`` and ``end`` (exclusive) in it.
      null_odds: v2.0 only: the score of "" minus that of the best other answer.
      spans: characters [start, end) of the best answer other than "" in the context, for questions
        that have one.
      threshold: the null odds above which the answer is "".
    """

    answers: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]
    spans: dict[str, tuple[int, int]]
    threshold: float = 0.0


# google-research/bert's answer to a v1.1 question for which no span is possible.
_NO_SPAN = RankedAnswer("empty", 0.0, 0.0)


def decode_answers(
    squad: SquadFile,
    tokenizer: Tokenizer,
    windows: WindowSettings,
    candidates: SpanCandidates,
    settings: AnswerSettings,
) -> Predictions:
    """Decodes the answers to all questions of a file.

    Args:
      squad: the questions.
      tokenizer, windows: those that the records were made with.
      candidates: the network's output for the records.
      settings: how to choose answers.

    Raises:
      UserError: if logits are not finite, or candidates do not match the windows of the questions.
    """
    _require_finite_scores(candidates)
    predictions = Predictions({}, {}, {}, {}, settings.null_score_diff_threshold)
    row = 0
    for example, encoding, windows_of_question in _windows_by_question(squad, tokenizer, windows):
        stop = row + len(windows_of_question)
        question_candidates = SpanCandidates(*(values[row:stop] for values in candidates))
        if len(question_candidates.null_logits) == len(windows_of_question):
            _decode_question(
                predictions, example, encoding, windows_of_question, question_candidates, settings
            )
        row = stop
    if row != len(candidates.null_logits):
        raise UserError(
            f"the network gave scores for {len(candidates.null_logits)} windows, but the questions "
            f"of {squad.path} have {row} with this vocabulary and these lengths; make the records "
            "again."
        )
    return predictions


def best_span_texts(squad: SquadFile, predictions: Predictions) -> dict[str, str]:
    """Each question's best answer other than "", to which thresholds are applied.

    The answer is "" only if no span is possible.
    """
    texts = {}
    for example in squad.examples:
        start, end = predictions.spans.get(example.question_id, (0, 0))
        texts[example.question_id] = example.context[start:end]
    return texts


def write_predictions(
    output_dir: PathLike, predictions: Predictions, *, version_2_with_negative: bool
) -> None:
    """Writes predictions.json, nbest_predictions.json and, for v2.0, null_odds.json.

    The directory must exist. If the data is not v2.0, an old null_odds.json is removed, because it
    would seem to belong to the new predictions.
    """
    directory = Path(output_dir)
    _write_json(directory / PREDICTIONS_NAME, predictions.answers)
    _write_json(directory / NBEST_NAME, predictions.nbest)
    if version_2_with_negative:
        _write_json(directory / NULL_ODDS_NAME, predictions.null_odds)
    else:
        (directory / NULL_ODDS_NAME).unlink(missing_ok=True)


def _write_json(path: Path, value: Any) -> None:
    # With escapes, since UTF-8 cannot encode every string, such as lone surrogates.
    with atomic_open(path) as file:
        json.dump(value, file, indent=4)
        file.write("\n")


def _require_finite_scores(candidates: SpanCandidates) -> None:
    """Raises UserError if a score is NaN or infinite; unused slots may be -inf."""
    is_wrong = ~np.isfinite(candidates.null_logits)
    for logits in (candidates.start_logits, candidates.end_logits):
        is_wrong |= (np.isnan(logits) | np.isposinf(logits)).any(axis=-1)
    if is_wrong.any():
        raise UserError(
            f"the network's scores are not finite numbers in {is_wrong.sum()} of {is_wrong.size} "
            "windows; use an earlier checkpoint, or train again with a smaller --learning_rate."
        )


def _windows_by_question(
    squad: SquadFile, tokenizer: Tokenizer, settings: WindowSettings
) -> Iterator[tuple[Example, Encoding, list[Window]]]:
    """Yields questions with tokenized paragraph and windows, holding one paragraph at a time."""
    for context, examples in itertools.groupby(squad.examples, key=lambda e: e.context):
        encoding = tokenizer.encode_with_offsets(context)
        for example in examples:
            question_ids = tokenizer.encode(example.question)
            windows = question_windows(question_ids, len(encoding.ids), settings)
            yield example, encoding, windows


def _decode_question(
    predictions: Predictions,
    example: Example,
    encoding: Encoding,
    windows: Sequence[Window],
    candidates: SpanCandidates,
    settings: AnswerSettings,
) -> None:
    """Adds the answer to a question, given the candidates of its W windows."""
    spans = possible_spans(windows, candidates, settings.max_answer_length)
    null = None
    if settings.version_2_with_negative:
        # Only the sum of the two logits is known. A question without windows has no answer.
        score = float(candidates.null_logits.min()) if windows else 0.0
        null = RankedAnswer("", score / 2, score / 2)
    ranked = rank_answers(spans, encoding, example.context, null)
    entries = list(itertools.islice(ranked, settings.n_best_size))
    best = next((e for e in itertools.chain(entries, ranked) if e.span), None)
    # Either can be the answer, depending on the threshold, so both are always listed.
    entries += [entry for entry in (best, null) if entry and entry not in entries]

    answer = entries[0].text if entries else _NO_SPAN.text
    if null:
        odds = null.start_logit + null.end_logit
        if best:
            odds = odds - best.start_logit - best.end_logit
        predictions.null_odds[example.question_id] = odds
        is_null = odds > settings.null_score_diff_threshold
        answer = "" if best is None or is_null else best.text
    predictions.answers[example.question_id] = answer
    predictions.nbest[example.question_id] = _describe(entries or [_NO_SPAN])
    if best and best.span:
        predictions.spans[example.question_id] = best.span


def _describe(entries: Sequence[RankedAnswer]) -> list[dict[str, Any]]:
    """Answers in their output format, with probabilities normalised over the list."""
    scores = np.array([entry.start_logit + entry.end_logit for entry in entries])
    weights = np.exp(scores - scores.max())
    described = []
    for entry, probability in zip(entries, (weights / weights.sum()).tolist()):
        description = {
            "text": entry.text,
            "probability": probability,
            "start_logit": entry.start_logit,
            "end_logit": entry.end_logit,
        }
        if entry.span:
            description["start"], description["end"] = entry.span
        described.append(description)
    return described
