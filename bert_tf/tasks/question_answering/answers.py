"""Decodes span logits to answers that are extracted from the text, of files and in memory.

The rules are those of google-research/bert's run_squad.py: the best pairs of a first and a last
token over all windows of a question compete, in v2.0 with "no answer" too. Unlike there, an answer
is the exact text between two characters of the paragraph, not reconstructed from tokens.

Dimensions: N windows in total, W windows of a question, K candidates, M spans.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.config.declared import with_settings_of_model
from bert_tf.finetune.scores import softmax
from bert_tf.inference.sequences import SequencePredictor, listed, parts_of
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.question_answering.examples import SquadFile
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.tasks.question_answering.windows import (
    SpanCandidates,
    Window,
    WindowSettings,
    fitting_windows,
    has_max_context,
    question_windows,
    sequence_arrays,
)
from bert_tf.text.tokenizer import Encoding, Tokenizer
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, atomic_open
from bert_tf.util.progress import Progress

PREDICTIONS_NAME = "predictions.json"
NBEST_NAME = "nbest_predictions.json"
NULL_ODDS_NAME = "null_odds.json"


class Answered(NamedTuple):
    """The answer to a question.

    Attributes:
      text: the answer; "" for no answer.
      nbest: at least one answer, best first, each with ``text``, ``probability`` among the listed
        answers, ``start_logit``, ``end_logit`` and, if extracted from the context, the characters
        ``start`` and ``end`` (exclusive) in it.
      null_odds: v2.0 only: the score of "" minus that of the best other answer.
      span: characters [start, end) of the best answer other than "" in the context, if any.
    """

    text: str
    nbest: list[dict[str, Any]]
    null_odds: float | None = None
    span: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Answers by question id, in the order of the data.

    ``threshold`` is the null odds above which the answer is "".
    """

    of_question: Mapping[str, Answered]
    threshold: float = 0.0

    @property
    def answers(self) -> dict[str, str]:
        """The text of each answer."""
        return {key: answered.text for key, answered in self.of_question.items()}

    @property
    def null_odds(self) -> dict[str, float]:
        """The null odds of each question; none for v1.1."""
        odds = {key: answered.null_odds for key, answered in self.of_question.items()}
        return {key: value for key, value in odds.items() if value is not None}

    def span_texts(self, squad: SquadFile) -> dict[str, str]:
        """Each question's best answer other than "", to which thresholds are applied.

        The answer is "" only if no span is possible.
        """
        spans = {key: answered.span or (0, 0) for key, answered in self.of_question.items()}
        return {e.question_id: e.context[slice(*spans[e.question_id])] for e in squad.examples}


class RankedAnswer(NamedTuple):
    """A possible answer; ``span`` is None if it is not taken from the context."""

    text: str
    start_logit: float
    end_logit: float
    span: tuple[int, int] | None = None

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit


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
    answered = {}
    row = 0
    for context, examples in itertools.groupby(squad.examples, key=lambda e: e.context):
        encoding = tokenizer.encode_with_offsets(context)
        for example in examples:
            ids = tokenizer.encode(example.question)
            of_question = question_windows(ids, len(encoding.ids), windows)
            stop = row + len(of_question)
            own = SpanCandidates(*(values[row:stop] for values in candidates))
            if len(own.null_logits) == len(of_question):
                answer = decode_answer(context, encoding, of_question, own, settings)
                answered[example.question_id] = answer
            row = stop
    if row != len(candidates.null_logits):
        raise UserError(
            f"the network gave scores for {len(candidates.null_logits)} windows, but the questions "
            f"of {squad.path} have {row} with this vocabulary and these lengths; make the records "
            "again."
        )
    return Predictions(answered, settings.null_score_diff_threshold)


def write_predictions(
    output_dir: PathLike, predictions: Predictions, *, version_2_with_negative: bool
) -> None:
    """Writes predictions.json, nbest_predictions.json and, for v2.0, null_odds.json.

    The directory must exist. If the data is not v2.0, an old null_odds.json is removed, because it
    would seem to belong to the new predictions.
    """
    directory = Path(output_dir)
    _write_json(directory / PREDICTIONS_NAME, predictions.answers)
    nbest = {key: answered.nbest for key, answered in predictions.of_question.items()}
    _write_json(directory / NBEST_NAME, nbest)
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


def decode_answer(
    context: str,
    encoding: Encoding,
    windows: Sequence[Window],
    candidates: SpanCandidates,
    settings: AnswerSettings,
) -> Answered:
    """The answer to a question, given the finite candidates of its W windows of a context."""
    spans = possible_spans(windows, candidates, settings.max_answer_length)
    null = None
    if settings.version_2_with_negative:
        # Only the sum of the two logits is known. A question without windows has no answer.
        score = float(candidates.null_logits.min()) if windows else 0.0
        null = RankedAnswer("", score / 2, score / 2)
    ranked = rank_answers(spans, encoding, context, null)
    entries = list(itertools.islice(ranked, settings.n_best_size))
    best = next((e for e in itertools.chain(entries, ranked) if e.span), None)
    # Either can be the answer, depending on the threshold, so both are always listed.
    entries += [entry for entry in (best, null) if entry and entry not in entries]

    text, odds = entries[0].text if entries else _NO_SPAN.text, None
    if null:
        odds = null.score
        if best:
            odds = odds - best.start_logit - best.end_logit
        text = "" if best is None or odds > settings.null_score_diff_threshold else best.text
    return Answered(text, _describe(entries or [_NO_SPAN]), odds, best.span if best else None)


def _describe(entries: Sequence[RankedAnswer]) -> list[dict[str, Any]]:
    """Answers in their output format, with probabilities normalised over the list."""
    probabilities = softmax(np.array([entry.score for entry in entries]))
    described = []
    for entry, probability in zip(entries, probabilities.tolist()):
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
        if null and null.score > scores[index]:
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


# Windows; larger batches need more memory.
_BATCH_SIZE = 8


@dataclasses.dataclass(frozen=True)
class FoundAnswer:
    """A possible answer to a question.

    Attributes:
      text: the context from ``start`` to ``end``; "" if there is no answer.
      probability: its probability among the n-best answers.
      score: sum of the logits of its first and last token.
      start, end: character offsets in the context, ``end`` exclusive; None if it is not a span.
    """

    text: str
    probability: float
    score: float
    start: int | None
    end: int | None


class Answerer(SequencePredictor):
    """A span model, with the ``windows`` of contexts and ``settings`` for choosing its answers."""

    def __init__(
        self,
        model: CompleteModel,
        *,
        windows: WindowSettings | None = None,
        settings: AnswerSettings | None = None,
        batch_size: int = _BATCH_SIZE,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          windows: None for those of the model's training, or else run_squad.py's defaults, limited
            to the network's maximum length.
          settings: None for those of the model's training, or else run_squad.py's defaults.
          batch_size: maximum number of windows per batch.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: if the weights do not belong to such a model, or sequences are too long for
            it.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.tasks.question_answering.task import SpanTask

        self.windows = windows or kept_windows(model)
        self.windows.validate()
        self.settings = settings or with_settings_of_model(AnswerSettings(), model.kept)
        self._tokenizer = model.tokenizer
        super().__init__(
            SpanTask(model.config, num_candidates=self.settings.n_best_size),
            model.checkpoint,
            self.windows.max_seq_length,
            batch_size=batch_size,
            **options,
        )

    def answer(
        self, question: str, context: str, *, shows_progress: bool = False
    ) -> list[FoundAnswer]:
        """The n-best answers to a question about a text, best first, at least one.

        The first is the model's answer: in v2.0, "" if its score exceeds the others' by more than
        the threshold. Up to ``settings.n_best_size`` others follow in order of score.
        ``shows_progress`` reports progress on standard error.
        """
        encoding = self._tokenizer.encode_with_offsets(context)
        ids = self._tokenizer.encode(question)
        windows = question_windows(ids, len(encoding.ids), self.windows)
        candidates = self._candidates(windows, encoding.ids, shows_progress=shows_progress)
        _require_finite_scores(candidates)
        answered = decode_answer(context, encoding, windows, candidates, self.settings)
        answers = [
            FoundAnswer(
                # Google's placeholder for "nothing found" in v1.1 is not part of the context.
                text=entry["text"] if "start" in entry else "",
                probability=entry["probability"],
                score=entry["start_logit"] + entry["end_logit"],
                start=entry.get("start"),
                end=entry.get("end"),
            )
            for entry in answered.nbest
        ]
        # The sort is stable: the chosen answer comes first and the others keep their order.
        return sorted(answers, key=lambda answer: answer.text != answered.text)

    def predict(self, inputs: Sequence[tuple[str, str]]) -> list[list[FoundAnswer]]:
        """The answers to each question about a text, as :meth:`answer` gives them."""
        pairs = [(given, parts_of(given)) for given in listed(inputs)]
        for given, parts in pairs:
            if len(parts) != 2:
                raise UserError(
                    f"{short_repr(given)} is not a question with its text; give such pairs."
                )
        return [self.answer(*parts) for _, parts in pairs]

    def _candidates(
        self, windows: Sequence[Window], context_ids: Sequence[int], *, shows_progress: bool
    ) -> SpanCandidates:
        """The best start and end positions in every window of the context."""
        if not windows:
            indices, logits = np.zeros([0, 1], np.int32), np.zeros([0, 1], np.float32)
            return SpanCandidates(indices, logits, indices, logits, logits[:, 0])
        width = self.padded(max(window.length for window in windows))
        pairs = [(window, context_ids) for window in windows]
        progress = Progress("answering", len(windows), "windows") if shows_progress else None
        features = sequence_arrays(pairs, self._tokenizer, width)
        return SpanCandidates(**self.run(features, progress=progress))


def kept_windows(model: CompleteModel) -> WindowSettings:
    """The lengths of a model's training, or else run_squad.py's defaults, as far as they fit it."""
    usual = dataclasses.asdict(fitting_windows(model.config.max_position_embeddings))
    return WindowSettings(**{name: model.kept.get(name, usual[name]) for name in usual})
