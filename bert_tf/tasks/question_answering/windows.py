"""Splits questions and their paragraphs into sequences of limited length.

A sequence is ``[CLS] question [SEP] part of the paragraph [SEP]``. A paragraph that is too long is
split into overlapping windows by the rules of google-research/bert's run_squad.py. A token may be
in several windows, but counts only in the one where it has the most context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_tf.text.windows import windows_of
from bert_tf.util.errors import UserError

NUM_SPECIAL = 3  # [CLS] and two [SEP]


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Lengths and distances in tokens.

    Attributes:
      max_seq_length: maximum length of a sequence, special tokens included.
      doc_stride: distance between the starts of consecutive windows.
      max_query_length: length to which questions are truncated.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    @property
    def has_room(self) -> bool:
        """Whether a part of the paragraph fits next to the longest question."""
        return self.max_seq_length > self.max_query_length + NUM_SPECIAL

    def validate(self) -> None:
        """Raises UserError for impossible lengths."""
        for name in ("doc_stride", "max_query_length"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)} must be at least 1.")
        if not self.has_room:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} leaves no room for a paragraph next to "
                f"--max_query_length={self.max_query_length} and {NUM_SPECIAL} special tokens; "
                f"give at least {self.max_query_length + NUM_SPECIAL + 1}."
            )


def fitting_windows(longest: int) -> WindowSettings:
    """run_squad.py's lengths, reduced so that sequences have at most ``longest`` tokens."""
    defaults = WindowSettings()
    if longest >= defaults.max_seq_length:
        return defaults
    return WindowSettings(
        max_seq_length=longest,
        doc_stride=max(1, longest // 3),
        max_query_length=min(defaults.max_query_length, longest // 4),
    )


@dataclasses.dataclass(frozen=True)
class Window:
    """One sequence of a question.

    Attributes:
      question_ids: the question, truncated to max_query_length.
      first_token: index in the paragraph of the window's first token.
      num_tokens: number of the paragraph's tokens in the window.
    """

    question_ids: list[int]
    first_token: int
    num_tokens: int

    @property
    def length(self) -> int:
        """The length of the sequence without padding."""
        return len(self.question_ids) + self.num_tokens + NUM_SPECIAL

    @property
    def context_offset(self) -> int:
        """The position in the sequence at which the paragraph begins."""
        return len(self.question_ids) + 2

    def position(self, token: int) -> int | None:
        """The position in the sequence of a paragraph's token; None outside the window."""
        if not self.first_token <= token < self.first_token + self.num_tokens:
            return None
        return token - self.first_token + self.context_offset


def cut_windows(
    num_question_ids: int, num_context_tokens: int, settings: WindowSettings
) -> list[tuple[int, int]]:
    """Splits a paragraph into the windows for a question, which may exceed max_query_length.

    Returns: (first token, number of tokens) per window; empty for a paragraph without tokens.
    """
    question = min(num_question_ids, settings.max_query_length)
    room = settings.max_seq_length - question - NUM_SPECIAL
    return windows_of(num_context_tokens, room, settings.doc_stride)


def question_windows(
    question_ids: Sequence[int], num_context_tokens: int, settings: WindowSettings
) -> list[Window]:
    """All sequences of a question (see :func:`cut_windows`)."""
    question = list(question_ids[: settings.max_query_length])
    ranges = cut_windows(len(question), num_context_tokens, settings)
    return [Window(question, first, length) for first, length in ranges]


def has_max_context(windows: Sequence[tuple[int, int]], window_index: int, token: int) -> bool:
    """Whether a window is the one in which a token has the most context.

    Context is the number of tokens to the left or right of the token, whichever is smaller, plus a
    hundredth of the window's length; of equal windows the first one counts. ``windows`` are those
    of a question, from :func:`cut_windows`.
    """

    def context(index: int) -> float:
        first, length = windows[index]
        left, right = token - first, first + length - 1 - token
        return min(left, right) + 0.01 * length if left >= 0 <= right else -1.0

    return max(range(len(windows)), key=context) == window_index


class SpanCandidates(NamedTuple):
    """The best positions in the context of each window, best first; ties in order of position.

    Holds arrays for all N windows in record order, or tensors for a batch in a graph; K candidates.

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
