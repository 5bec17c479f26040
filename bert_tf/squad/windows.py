"""How a question and its paragraph become sequences of limited length.

A sequence is ``[CLS] question [SEP] part of the paragraph [SEP]``. Where the paragraph is too long,
several overlapping windows of it are made, by the rules of google-research/bert's run_squad.py.
A token of the paragraph may be in several windows; only the one in which it has the most context is
to decide about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_tf.errors import UserError

NUM_SPECIAL = 3  # [CLS] and two [SEP]


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Lengths in tokens.

    Attributes:
      max_seq_length: of a sequence, special tokens included.
      doc_stride: from the start of a window to the start of the next one.
      max_query_length: of a question; the rest is cut off.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def validate(self) -> None:
        """Raises UserError for lengths that cannot be."""
        for name in ("doc_stride", "max_query_length"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)}: give at least 1.")
        if self.max_seq_length <= self.max_query_length + NUM_SPECIAL:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} leaves no room for a paragraph beside "
                f"--max_query_length={self.max_query_length} and {NUM_SPECIAL} special tokens; "
                f"give at least {self.max_query_length + NUM_SPECIAL + 1}."
            )


@dataclasses.dataclass(frozen=True)
class Window:
    """One sequence of a question.

    Attributes:
      question_ids: the question, cut to max_query_length.
      first_token: the window's first token in the paragraph.
      num_tokens: how many tokens of the paragraph it holds.
    """

    question_ids: list[int]
    first_token: int
    num_tokens: int

    @property
    def length(self) -> int:
        """Tokens of the sequence, without padding."""
        return len(self.question_ids) + self.num_tokens + NUM_SPECIAL

    @property
    def context_offset(self) -> int:
        """Where the paragraph begins in the sequence."""
        return len(self.question_ids) + 2

    def position(self, token: int) -> int | None:
        """Where a token of the paragraph is in the sequence, None outside of the window."""
        if not self.first_token <= token < self.first_token + self.num_tokens:
            return None
        return token - self.first_token + self.context_offset


def cut_windows(
    num_question_ids: int, num_context_tokens: int, settings: WindowSettings
) -> list[tuple[int, int]]:
    """The parts of a paragraph that a question's sequences hold.

    Args:
      num_question_ids: tokens of the question; above max_query_length, the cut one counts.
      num_context_tokens: tokens of the paragraph.

    Returns: (first token, number of tokens) of each window; none for a paragraph without tokens.
    """
    question = min(num_question_ids, settings.max_query_length)
    room = settings.max_seq_length - question - NUM_SPECIAL
    windows = []
    first = 0
    while first < num_context_tokens:
        length = min(room, num_context_tokens - first)
        windows.append((first, length))
        if first + length == num_context_tokens:
            break
        first += min(length, settings.doc_stride)
    return windows


def question_windows(
    question_ids: Sequence[int], num_context_tokens: int, settings: WindowSettings
) -> list[Window]:
    """All sequences of a question, see :func:`cut_windows`."""
    question = list(question_ids[: settings.max_query_length])
    spans = cut_windows(len(question), num_context_tokens, settings)
    return [Window(question, first, length) for first, length in spans]


def has_max_context(windows: Sequence[tuple[int, int]], window_index: int, token: int) -> bool:
    """Whether a window is the one that is to decide about a token.

    It is the one with the largest smaller side, to the left or to the right of the token, plus a
    hundredth of the window's length; of equal ones the first.

    Args:
      windows: the question's, from :func:`cut_windows`.
      window_index: the window asked about.
      token: a token of the paragraph that is in that window.
    """
    best_index, best_score = None, -1.0
    for index, (first, length) in enumerate(windows):
        left = token - first
        right = first + length - 1 - token
        if left < 0 or right < 0:
            continue
        score = min(left, right) + 0.01 * length
        if score > best_score:
            best_index, best_score = index, score
    return best_index == window_index
