"""The spans of a paragraph that can answer a question, best first.

Dimensions: N windows in total, W windows of a question, K candidates, M spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.tasks.question_answering.windows import Window, has_max_context
from bert_tf.text.tokenizer import Encoding


class SpanCandidates(NamedTuple):
    """The best positions in the context of each window, best first; ties in order of position.

    Holds arrays for all windows in record order, or tensors for a batch in a graph.

    Attributes:
      start_indices, end_indices: [N, K] int32 positions in the sequence.
      start_logits, end_logits: [N, K] float32, -inf in unused slots.
      null_logits: [N] float32, start plus end logit of [CLS], which represents "no answer".
    """

    start_indices: Any
    start_logits: Any
    end_indices: Any
    end_logits: Any
    null_logits: Any


class RankedAnswer(NamedTuple):
    """A possible answer; ``span`` is None if it is not taken from the context."""

    text: str
    start_logit: float
    end_logit: float
    span: tuple[int, int] | None = None


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
