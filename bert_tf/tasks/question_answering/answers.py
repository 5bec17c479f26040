"""Decodes span logits to answers that are extracted from the text.

The rules are those of google-research/bert's run_squad.py: the best pairs of a first and a last
token over all windows of a question compete, in v2.0 with "no answer" too. Unlike there, an answer
is the exact text between two characters of the paragraph, not reconstructed from tokens.

Dimensions: N windows in total, W windows of a question, K candidates, M spans.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.tasks.question_answering.examples import Example, SquadFile
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.tasks.question_answering.windows import (
    SpanCandidates,
    Window,
    WindowSettings,
    has_max_context,
    question_windows,
)
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


class RankedAnswer(NamedTuple):
    """A possible answer; ``span`` is None if it is not taken from the context."""

    text: str
    start_logit: float
    end_logit: float
    span: tuple[int, int] | None = None


# google-research/bert's answer to a v1.1 question for which no span is possible.
_NO_SPAN = RankedAnswer("empty", 0.0, 0.0)


def decode_answers(
    squad: SquadFile,
    tokenizer: Tokenizer,
    windows: WindowSettings,
    candidates: SpanCandidates,
    settings: AnswerSettings,
) -> Predictions:
    """Decodes the answers to all questions of a file from the network's output for its records.

    Raises UserError if logits are not finite, or candidates do not match the windows of the
    questions.
    """
    _require_finite_scores(candidates)
    predictions = Predictions({}, {}, {}, {}, settings.null_score_diff_threshold)
    row = 0
    for context, examples in itertools.groupby(squad.examples, key=lambda e: e.context):
        encoding = tokenizer.encode_with_offsets(context)
        for example in examples:
            ids = tokenizer.encode(example.question)
            of_question = question_windows(ids, len(encoding.ids), windows)
            stop = row + len(of_question)
            own = SpanCandidates(*(values[row:stop] for values in candidates))
            if len(own.null_logits) == len(of_question):
                _decode_question(predictions, example, encoding, of_question, own, settings)
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


class Spans(NamedTuple):
    """Pairs of tokens in the paragraph, [M] each, ordered by window, start and end."""

    first: np.ndarray
    last: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray


def possible_spans(windows: Sequence[Window], candidates: SpanCandidates, max_length: int) -> Spans:
    """All pairs of a first and a last token in the same window that can be an answer."""
    starts, starts_usable = _context_tokens(
        windows, candidates.start_indices, candidates.start_logits
    )
    ends, ends_usable = _context_tokens(windows, candidates.end_indices, candidates.end_logits)
    if len(windows) > 1:
        ranges = [(window.first_token, window.num_tokens) for window in windows]
        for window, slot in np.argwhere(starts_usable).tolist():
            token = int(starts[window, slot])
            starts_usable[window, slot] = has_max_context(ranges, window, token)
    lengths = ends[:, np.newaxis, :] - starts[:, :, np.newaxis] + 1  # [W, K, K]
    is_possible = (lengths >= 1) & (lengths <= max_length)
    is_possible &= starts_usable[:, :, np.newaxis] & ends_usable[:, np.newaxis, :]
    places, start, end = np.nonzero(is_possible)
    return Spans(
        starts[places, start],
        ends[places, end],
        candidates.start_logits[places, start].astype(np.float64),
        candidates.end_logits[places, end].astype(np.float64),
    )


def _context_tokens(
    windows: Sequence[Window], indices: np.ndarray, logits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions converted to tokens of the paragraph, [W, K] int64, and a mask of valid ones."""
    offsets = np.array([window.context_offset for window in windows], np.int64)[:, np.newaxis]
    firsts = np.array([window.first_token for window in windows], np.int64)[:, np.newaxis]
    counts = np.array([window.num_tokens for window in windows], np.int64)[:, np.newaxis]
    in_window = indices - offsets
    is_usable = (in_window >= 0) & (in_window < counts) & np.isfinite(logits)
    return in_window + firsts, is_usable


def rank_answers(
    spans: Spans, encoding: Encoding, context: str, null: RankedAnswer | None
) -> Iterator[RankedAnswer]:
    """Yields all distinct answers, best first; ties in the order of spans, ``null`` last."""
    scores = spans.start_logits + spans.end_logits
    seen = set()
    for index in np.argsort(-scores, kind="stable").tolist():
        if null and null.start_logit + null.end_logit > scores[index]:
            yield null
            null = None
        first, last = spans.first[index], spans.last[index]
        start, end = _strip(context, encoding.starts[first], encoding.ends[last])
        text = context[start:end]
        if text and text not in seen:
            seen.add(text)
            logits = float(spans.start_logits[index]), float(spans.end_logits[index])
            yield RankedAnswer(text, *logits, (start, end))
    if null:
        yield null


def _strip(context: str, start: int, end: int) -> tuple[int, int]:
    """Removes white space, which tokens may include, from both ends of a range."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
