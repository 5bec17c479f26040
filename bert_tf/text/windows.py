"""What is read of texts with more tokens than a sequence has room for: a part, or windows."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


def kept_counts(counts: Sequence[int], room: int) -> list[int]:
    """The tokens to keep of each text, so that all of them fit into ``room`` tokens.

    The longer text, or else the later one, loses one token at a time, as in google-research/bert.
    """
    if len(counts) == 1:
        return [min(counts[0], room)]
    kept = list(counts)
    for _ in range(sum(kept) - room):
        longest = max(range(len(kept)), key=lambda number: (kept[number], number))
        kept[longest] -= 1
    return kept


def windows_of(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Splits a text into windows of at most ``room`` tokens that begin ``stride`` apart.

    Returns: (first token, number of tokens) per window; empty for a text without tokens.
    """
    return [(start, end - start) for start, end in _spans(range(num_tokens + 1), room, stride)]


class Window(NamedTuple):
    """One sequence of a sentence.

    Attributes:
      words: the words in it.
      scored: those that are trained, scored and predicted in it; the others are context.
    """

    words: slice
    scored: slice


def windows_of_words(num_pieces: Sequence[int], room: int, stride: int) -> list[Window]:
    """Splits a sentence into windows, each with as many whole words as fit.

    Every word is scored in exactly one window, and each window scores at least one word. The
    context of a word is the number of tokens to its left or right in the window, whichever is
    smaller; of equal windows the first one counts. ``num_pieces`` are the words' numbers of tokens,
    from 1 to ``room``; ``stride`` is the most tokens between the starts of windows.
    """
    offsets = [0, *itertools.accumulate(num_pieces)]
    spans = _spans(offsets, room, stride)
    first_scored = [0, *(_first_scored(offsets, *pair) for pair in zip(spans, spans[1:]))]
    return [
        Window(slice(*span), slice(first, end))
        for span, first, end in zip(spans, first_scored, [*first_scored[1:], len(num_pieces)])
        if first < end
    ]


def _spans(offsets: Sequence[int], room: int, stride: int) -> list[tuple[int, int]]:
    """The words [start, end) of windows; ``offsets`` are the tokens before each word and in all."""
    spans: list[tuple[int, int]] = []
    start = end = 0
    while end < len(offsets) - 1:
        end = bisect_right(offsets, offsets[start] + room) - 1
        spans.append((start, end))
        if end < len(offsets) - 1:
            farthest = bisect_right(offsets, offsets[start] + stride) - 1
            # The next window has at least one more word.
            nearest = bisect_left(offsets, offsets[end + 1] - room)
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
