"""The schemes by which tokens are masked together; without one, they are chosen one by one.

A scheme is a function and a row of ``CHOOSERS``, under the setting that asks for it:

- whole words (google-research/bert): the pieces of a word are chosen together, and a word that
  would exceed the number of predictions is skipped.
- n-grams (Lan et al. 2020, section 4.1; google-research/albert): in random order, each word begins
  one of a random length, which is shortened where it would exceed the number of predictions and
  skipped where it overlaps with another. Unlike there, an n-gram stays in its segment and continues
  at the first word there when it reaches the end, so that all words are equally likely to be
  predicted.
- spans (Joshi et al. 2020, section 3.1; facebookresearch/SpanBERT): in random order, each word that
  is not masked yet begins a span of whole words, whose length is geometrically distributed. It ends
  earlier where its segment does, before a word that is masked already, and where another word would
  exceed the number of predictions. All tokens of a span become [MASK], stay or are random together.
  Published spans also go on behind masked words, count as one where they touch, and end within a
  word where they would exceed the number of predictions.

The rest of a word that was cut off at the start of a segment counts as a separate word, whereas
google's code adds it to the last word of the previous segment.

Symbols: B sequences, S positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable, NamedTuple, Optional

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.stateless_random import bits_to_uniform, sort_keys

_LENGTHS = 3  # the draws behind those of the scores and of the replacements

# Lengths of spans in words: P(n) is proportional to p * (1 - p)**(n - 1), up to the longest.
_SPAN_P = 0.2
_LONGEST_SPAN = 10


class Maskable(NamedTuple):
    """What there is to choose from.

    Attributes:
      candidates: bool [B, S], the tokens that may be predicted.
      wanted: int64 [B], the most predictions of a sequence.
      starts: [B, S], true where a word or special token begins; None if tokens count as words.
      draw: draws of a kind, one for each position, uint64 [B, S]; those of kind 0 are the scores
        that order words, and kinds 1 and 2 are used for the replacements.
    """

    candidates: np.ndarray
    wanted: np.ndarray
    starts: np.ndarray | None
    draw: Callable[[int], np.ndarray]


# The tokens that are chosen, bool [B, S], and the number of the draw that decides what each of them
# becomes, int64 [B, S]: tokens with the same number become [MASK], stay or are random together.
# Without numbers, each has a draw of its own.
Chosen = tuple[np.ndarray, Optional[np.ndarray]]


def _choose_words(tokens: Maskable, options: MaskingOptions) -> Chosen:
    """Goes through each sequence's words in random order and takes those that still fit."""
    del options
    words, sizes, order = _words_in_random_order(tokens)
    rows = np.arange(len(words))
    chosen_words = np.zeros_like(tokens.candidates)
    left = tokens.wanted.copy()
    for word in order.T:
        size = sizes[rows, word]
        fits = (size > 0) & (size <= left)
        chosen_words[rows, word] = fits
        left -= np.where(fits, size, 0)
        if not left.any():
            break
    return chosen_words[rows[:, None], words] & tokens.candidates, None


def _choose_ngrams(tokens: Maskable, options: MaskingOptions) -> Chosen:
    """Goes through each sequence's words in random order and takes the n-grams that still fit.

    An n-gram that reaches the end of its segment continues at the segment's first word. Otherwise
    the first words, which fewer n-grams reach, would be chosen a third less often than the others.
    """
    shares = 1 / np.arange(1, options.ngram + 1)
    shares /= shares.sum()
    counts = _draw_lengths(tokens, shares if options.favor_shorter_ngram else shares[::-1])
    words, sizes, order = _words_in_random_order(tokens)
    rows, places = np.arange(len(words))[:, None], np.arange(counts.max(initial=1))
    columns = np.arange(sizes.shape[1])
    is_word = sizes > 0  # special tokens and padding, between and behind segments, have no size
    begins = 1 + np.maximum.accumulate(np.where(is_word, -1, columns), axis=1)
    ends = np.where(is_word, len(columns), columns)[:, ::-1]
    lengths = np.minimum.accumulate(ends, axis=1)[:, ::-1] - begins
    sizes = np.pad(sizes, ((0, 0), (0, 1)))  # a column for no word
    taken = np.zeros(sizes.shape, bool)
    left = tokens.wanted[:, None]
    for first in order.T[:, :, None]:
        begin, length = begins[rows, first], lengths[rows, first]
        following = begin + (first - begin + places) % np.maximum(length, 1)
        ngram = np.where(places < length, following, len(columns))
        found = sizes[rows, ngram]
        inside = (found > 0) & (places < counts[rows, first]) & (found.cumsum(axis=1) <= left)
        inside &= ~(taken[rows, ngram] & inside).any(axis=1, keepdims=True)
        taken[rows, ngram] |= inside
        left = left - (found * inside).sum(axis=1, keepdims=True)
        if not left.any():
            break
    return taken[rows, words] & tokens.candidates, None


def _choose_spans(tokens: Maskable, options: MaskingOptions) -> Chosen:
    """Goes through each sequence's words in random order and begins spans with those left over."""
    del options
    shares = _SPAN_P * (1 - _SPAN_P) ** np.arange(_LONGEST_SPAN)
    lengths = _draw_lengths(tokens, shares / shares.sum())
    words, sizes, order = _words_in_random_order(tokens)
    rows, places = np.arange(len(words))[:, None], np.arange(_LONGEST_SPAN)
    # Sizes of the words that can be masked: special tokens have none, nor have those that are taken
    # and the columns behind all words.
    free = np.pad(sizes, ((0, 0), (0, _LONGEST_SPAN)))
    begins = np.full(free.shape, -1)  # the first word of each word's span
    left = tokens.wanted[:, None]
    for first in order.T[:, :, None]:
        span = first + places
        found = free[rows, span]
        fits = (found > 0) & (places < lengths[rows, first]) & (found.cumsum(axis=1) <= left)
        inside = np.logical_and.accumulate(fits, axis=1)
        begins[rows, span] = np.where(inside, first, begins[rows, span])
        free[rows, span] = np.where(inside, 0, found)
        left = left - (found * inside).sum(axis=1, keepdims=True)
        if not left.any():
            break
    deciding = begins[rows, words]
    return (deciding >= 0) & tokens.candidates, deciding


# The setting that asks for a scheme -> its chooser; of several settings that were given, the last
# one decides.
CHOOSERS: Mapping[str, Callable[[Maskable, MaskingOptions], Chosen]] = {
    "do_whole_word_mask": _choose_words,
    "ngram": _choose_ngrams,
    "span_masking": _choose_spans,
}


def _draw_lengths(tokens: Maskable, shares: np.ndarray) -> np.ndarray:
    """The number of words that begin together with each word: integers from 1 on, [B, S].

    ``shares`` are the probabilities of 1, 2, ... words.
    """
    found = np.searchsorted(shares.cumsum(), bits_to_uniform(tokens.draw(_LENGTHS))) + 1
    return np.minimum(found, len(shares))  # the shares may add up to less than 1


def _words_in_random_order(tokens: Maskable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The words of each sequence: every position's word [B, S], their sizes [B, S] and their order.

    A word's size is its number of candidates. The order [B, W] has all words with candidates, W of
    the sequence that has most, and others behind them.
    """
    num_sequences, seq_length = tokens.candidates.shape
    starts = np.ones_like(tokens.candidates) if tokens.starts is None else tokens.starts != 0
    words = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    flat = (np.arange(num_sequences)[:, None] * seq_length + words)[tokens.candidates]
    sizes = np.bincount(flat, minlength=words.size).reshape(words.shape)
    keys, column_mask = sort_keys(tokens.draw(0), sizes > 0)
    order = (np.sort(keys, axis=1) & column_mask).astype(np.int64)
    return words, sizes, order[:, : (sizes > 0).sum(axis=1).max(initial=0)]
