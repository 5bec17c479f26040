"""From scores of positions to answers cut out of the text.

The rules are those of google-research/bert's run_squad.py: the best pairs of a first and a last
token over all windows of a question compete, with "no answer" among them in v2.0. Unlike there, an
answer is the text between two characters of the paragraph, not a text put together from tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.errors import UserError
from bert_tf.files import PathLike, atomic_open
from bert_tf.squad.examples import Example, SquadFile
from bert_tf.squad.spans import Entry, SpanCandidates, possible_spans, rank_answers
from bert_tf.squad.windows import Window, WindowSettings, question_windows
from bert_tf.text.tokenizer import Encoding, Tokenizer

PREDICTIONS_NAME = "predictions.json"
NBEST_NAME = "nbest_predictions.json"
NULL_ODDS_NAME = "null_odds.json"


@dataclasses.dataclass(frozen=True)
class AnswerSettings:
    """How answers are chosen.

    Attributes:
      n_best_size: answers listed for each question; in v2.0 the best span and "" always are.
      max_answer_length: tokens of an answer.
      version_2_with_negative: whether "" is a possible answer.
      null_score_diff_threshold: "" is the answer where its score exceeds the best other answer's
        by more than this.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def validate(self) -> None:
        """Raises UserError for values that cannot be."""
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)}: give at least 1.")
        if math.isnan(self.null_score_diff_threshold):
            raise UserError("--null_score_diff_threshold=nan: give a number.")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Answers by question id, in the order of the data.

    Attributes:
      answers: the answer; "" for none.
      nbest: at least one answer, best first, each with ``text``, ``probability`` among those
        listed, ``start_logit``, ``end_logit`` and, if cut from the context, the characters
        ``start`` and ``end`` (exclusive) there.
      null_odds: v2.0: how far the score of "" is above the best other answer's.
      spans: characters [start, end) in the context of the best answer other than ""; only
        questions that have one.
    """

    answers: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]
    spans: dict[str, tuple[int, int]]


# google-research/bert's answer to v1.1 questions for which no span is possible.
_NO_SPAN = Entry("empty", 0.0, 0.0)


def decode_answers(
    squad: SquadFile,
    tokenizer: Tokenizer,
    windows: WindowSettings,
    candidates: SpanCandidates,
    settings: AnswerSettings,
) -> Predictions:
    """The answers to all questions of a file.

    Args:
      squad: the questions.
      tokenizer, windows: those that the records were made with.
      candidates: what the network gives for the records.
      settings: how to choose.

    Raises:
      UserError: scores that are no numbers, candidates that are not of these questions' windows.
    """
    settings.validate()
    _require_numbers(candidates)
    predictions = Predictions({}, {}, {}, {})
    row = 0
    for example, encoding, own_windows in _windows_by_question(squad, tokenizer, windows):
        stop = row + len(own_windows)
        own = SpanCandidates(*(values[row:stop] for values in candidates))
        if len(own.null_logits) == len(own_windows):
            _decode_question(predictions, example, encoding, own_windows, own, settings)
        row = stop
    if row != len(candidates.null_logits):
        raise UserError(
            f"the network gave scores for {len(candidates.null_logits)} windows, but the questions "
            f"of {squad.path} have {row} with this vocabulary and these lengths; make the records "
            "again."
        )
    return predictions


def best_span_texts(squad: SquadFile, predictions: Predictions) -> dict[str, str]:
    """Each question's answer if "" is no choice: what thresholds are compared for.

    "" is left for a question without any possible span.
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

    The directory exists. A null_odds.json that was there before goes when it is not v2.0: it would
    be taken to belong to the new predictions.
    """
    directory = Path(output_dir)
    _write_as_google(directory / PREDICTIONS_NAME, predictions.answers)
    _write_as_google(directory / NBEST_NAME, predictions.nbest)
    if version_2_with_negative:
        _write_as_google(directory / NULL_ODDS_NAME, predictions.null_odds)
    else:
        (directory / NULL_ODDS_NAME).unlink(missing_ok=True)


def _write_as_google(path: Path, value: Any) -> None:
    # Not all text is valid Unicode: escapes can write what UTF-8 cannot.
    with atomic_open(path) as file:
        json.dump(value, file, indent=4)
        file.write("\n")


def _require_numbers(candidates: SpanCandidates) -> None:
    """Raises UserError when a score is NaN or infinite; unused places may be -inf."""
    is_wrong = ~np.isfinite(candidates.null_logits)
    for logits in (candidates.start_logits, candidates.end_logits):
        is_wrong |= (np.isnan(logits) | np.isposinf(logits)).any(axis=-1)
    if is_wrong.any():
        raise UserError(
            f"the network's scores are not finite numbers in {is_wrong.sum()} of {is_wrong.size} "
            "windows; take an earlier checkpoint, or train again with a smaller --learning_rate."
        )


def _windows_by_question(
    squad: SquadFile, tokenizer: Tokenizer, settings: WindowSettings
) -> Iterator[tuple[Example, Encoding, list[Window]]]:
    """Questions with their tokenized paragraph and windows; one paragraph at a time is kept."""
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
    """Adds the answer to one question, with ``candidates`` of its W windows."""
    spans = possible_spans(windows, candidates, settings.max_answer_length)
    null = None
    if settings.version_2_with_negative:
        # Of both logits only the sum is known. A question without windows has nothing to find.
        score = float(candidates.null_logits.min()) if windows else 0.0
        null = Entry("", score / 2, score / 2)
    ranked = rank_answers(spans, encoding, example.context, null)
    entries = list(itertools.islice(ranked, settings.n_best_size))
    best = next((e for e in itertools.chain(entries, ranked) if e.span), None)
    # Either can be the answer, by the threshold, and is listed even where there is no room for it.
    entries += [entry for entry in (best, null) if entry and entry not in entries]

    answer = entries[0].text if entries else _NO_SPAN.text
    if null:
        odds = null.start_logit + null.end_logit
        if best:
            odds = odds - best.start_logit - best.end_logit
        predictions.null_odds[example.question_id] = odds
        is_null = best is None or odds > settings.null_score_diff_threshold
        answer = "" if is_null else best.text
    predictions.answers[example.question_id] = answer
    predictions.nbest[example.question_id] = _describe(entries or [_NO_SPAN])
    if best:
        predictions.spans[example.question_id] = best.span


def _describe(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries as they are written, with their probabilities among each other."""
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
