"""Splits sentences into sequences of limited length, which overlap.

A sequence is ``[CLS] some words [SEP]``. Windows are cut between words. A word may be in several of
them, but is trained, scored and predicted only in the one where it has the most context, as in
google-research/bert's run_squad.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from bert_tf.util.errors import UserError

_NUM_SPECIAL = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Lengths and distances in tokens.

    Attributes:
      max_seq_length: maximum length of a sequence, [CLS] and [SEP] included.
      doc_stride: maximum distance between the starts of consecutive windows, at least 1; None for
        half of the room in a window.
    """

    max_seq_length: int
    doc_stride: int | None = None

    @property
    def room(self) -> int:
        """Tokens of words in a sequence."""
        return self.max_seq_length - _NUM_SPECIAL

    @property
    def stride(self) -> int:
        """The distance that is used; with ``room``, windows do not overlap."""
        return min(self.room, self.doc_stride or max(1, self.room // 2))

    def validate(self) -> None:
        """Raises UserError if a sequence has no room for a word."""
        if self.room < 1:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} has no room for [CLS], a word and [SEP]; "
                f"give at least {_NUM_SPECIAL + 1}."
            )


class Window(NamedTuple):
    """One sequence of a sentence.

    Attributes:
      words: the words in it.
      scored: those that are trained, scored and predicted in it; the others are context.
    """

    words: slice
    scored: slice


def windows_of_words(num_pieces: Sequence[int], settings: WindowSettings) -> list[Window]:
    """Splits a sentence into windows, each with as many whole words as fit.

    Every word is scored in exactly one window, and each window scores at least one word. The
    context of a word is the number of tokens to its left or right in the window, whichever is
    smaller; of equal windows the first one counts. ``num_pieces`` are the words' numbers of tokens,
    from 1 to ``settings.room``.
    """
    offsets = [0, *itertools.accumulate(num_pieces)]
    spans = _spans(offsets, settings)
    first_scored = [0, *(_first_scored(offsets, *pair) for pair in zip(spans, spans[1:]))]
    return [
        Window(slice(*span), slice(first, end))
        for span, first, end in zip(spans, first_scored, [*first_scored[1:], len(num_pieces)])
        if first < end
    ]


def _spans(offsets: Sequence[int], settings: WindowSettings) -> list[tuple[int, int]]:
    """The words [start, end) of windows; ``offsets`` are the tokens before each word and in all."""
    spans: list[tuple[int, int]] = []
    start = end = 0
    while end < len(offsets) - 1:
        end = bisect_right(offsets, offsets[start] + settings.room) - 1
        spans.append((start, end))
        if end < len(offsets) - 1:
            farthest = bisect_right(offsets, offsets[start] + settings.stride) - 1
            # The next window has at least one more word.
            nearest = bisect_left(offsets, offsets[end + 1] - settings.room)
            start = min(max(farthest, nearest, start + 1), end)
    return spans


def _first_scored(offsets: Sequence[int], window: tuple[int, int], later: tuple[int, int]) -> int:
    """The first word that has more context in the later one of two consecutive windows.

    In the overlap, each has its end nearer to the word on one side: the earlier window to the right
    of it, the later one to the left.
    """
    (_, end), (start, _) = window, later
    return next(
        (
            word
            for word in range(start, end)
            if offsets[word] - offsets[start] > offsets[end] - offsets[word + 1]
        ),
        end,
    )
