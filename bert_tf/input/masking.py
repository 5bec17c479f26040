"""The masks of the masked language model, for both data preparation and training time.

The rules are those of the BERT paper (Devlin et al. 2018, appendix A.1) and of google-research/bert
(create_pretraining_data.py): round(0.15 x length) tokens of a sequence are predicted; of these 80%
become [MASK], 10% a random token, 10% are kept. With whole words, the pieces of a word are chosen
together, and a word that would exceed the number of predictions is skipped. N-grams are those of
ALBERT (Lan et al. 2020, section 4.1; google-research/albert): in random order, each word begins one
of a random length, which is shortened where it would exceed the number of predictions and skipped
where it overlaps with another. There are three deliberate differences: a random token is never a
special one; an n-gram stays in its segment and continues at the first word there when it reaches
the end, so that all words are equally likely to be predicted; and the rest of a word that was cut
off at the start of a segment counts as a separate word, whereas google's code adds it to the last
word of the previous segment.

Symbols: B sequences, S positions, P predictions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.stateless_random import (
    IntegerArray,
    bits_to_integers,
    bits_to_uniform,
    derive_keys,
    random_bits,
    random_bits_at,
)

_MASK_SHARE = 0.8
_KEEP_SHARE = 0.1
_ROUNDING = 1e-9  # 20 * (0.3 / 0.3) may be more than 20
_MASK_STREAM = 0x6D61736B  # separates these draws from others with the same seed


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
    """How masks are drawn, with a vocabulary.

    Attributes:
      options: how many tokens are predicted, and which; ``masked_lm_prob`` is a fraction of all
        tokens, including [CLS] and [SEP].
      vocab_size: random tokens are drawn from the ids below it.
      special_ids: ids by the names "pad", "unk", "cls", "sep" and "mask", as in a manifest. None is
        drawn as a random token; [PAD], [CLS] and [SEP] are never predicted, while an unknown word
        can be, as in google's code.
    """

    options: MaskingOptions
    vocab_size: int
    special_ids: Mapping[str, int]

    def with_options(self, **changes: Any) -> MaskingSettings:
        """The settings with some options changed."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **changes))


@dataclasses.dataclass(frozen=True)
class MaskShares:
    """A share of masked tokens that changes in a straight line (Ankner et al. 2024).

    Attributes:
      first, last: ``masked_lm_prob`` at position 0 and at the last one.
      positions: their number, at least 1.
      offset: is added to a position first, as to that of the learning rate.
    """

    first: float
    last: float
    positions: int
    offset: int = 0

    def at(self, position: int) -> float:
        """The share at a position; beyond the last one it stays."""
        way = (position + self.offset) / max(self.positions - 1, 1)
        return self.first + (self.last - self.first) * min(way, 1.0)

    def settings_at(self, position: int, settings: MaskingSettings) -> MaskingSettings:
        """The settings of a position: fewer predictions too, where the share is not the largest."""
        share = self.at(position)
        most = settings.options.max_predictions_per_seq * share / max(self.first, self.last)
        return settings.with_options(
            masked_lm_prob=share, max_predictions_per_seq=math.ceil(most - _ROUNDING)
        )


@dataclasses.dataclass(frozen=True)
class MaskedBatch:
    """Sequences with their masks.

    Attributes:
      input_ids: [B, S], with chosen tokens replaced.
      positions: int64 [B, P], ascending, 0 where unused.
      label_ids: int64 [B, P], the original tokens, 0 where unused.
      weights: float32 [B, P], 1 for a prediction and 0 where unused.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    label_ids: np.ndarray
    weights: np.ndarray


def example_keys(seed: int, *counters: IntegerArray) -> np.ndarray:
    """One key per example for :func:`mask_batch`: uint64 [B], see ``derive_keys``."""
    return derive_keys(seed, _MASK_STREAM, *counters)


def mask_batch(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    keys: np.ndarray,
    settings: MaskingSettings,
    word_starts: np.ndarray | None = None,
    whole_length: int | None = None,
    counted: np.ndarray | None = None,
) -> MaskedBatch:
    """Draws masks for a batch; those of a sequence depend only on its content and key.

    Args:
      input_ids: integer [B, S].
      lengths: integer [B], tokens of each sequence before its padding.
      keys: uint64 [B], see :func:`example_keys`.
      settings: how many and which.
      word_starts: [B, S], true where a word or special token begins; whole words need it.
      whole_length: the positions that sequences had before their padding was cut, which does not
        change their masks; None for S.
      counted: integer [B], the tokens of each sequence that ``masked_lm_prob`` is a share of; None
        for ``lengths``, as in google's code.
    """
    options, seq_length = settings.options, input_ids.shape[1]
    draws = whole_length or seq_length  # of each kind
    scores = random_bits(keys, seq_length)
    candidates = np.arange(seq_length) < lengths[:, None]
    for name in ("pad", "cls", "sep"):
        candidates &= input_ids != settings.special_ids[name]
    wanted = np.clip(
        np.round((lengths if counted is None else counted) * options.masked_lm_prob),
        1,
        options.max_predictions_per_seq,
    ).astype(np.int64)
    if options.do_whole_word_mask and word_starts is None:
        raise ValueError("masking whole words needs word_starts")
    if options.ngram > 1:
        starts = word_starts if options.do_whole_word_mask else np.ones_like(candidates)
        # The draws behind those of the replacements: one for every word.
        bits = random_bits_at(keys[:, None], 3 * draws + np.arange(seq_length))
        counts = np.searchsorted(_ngram_shares(options).cumsum(), bits_to_uniform(bits)) + 1
        counts = np.minimum(counts, options.ngram)  # the shares may add up to less than 1
        chosen = _choose_ngrams(scores, counts, candidates, wanted, starts)
    elif options.do_whole_word_mask:
        chosen = _choose_words(scores, candidates, wanted, word_starts)
    else:
        chosen = _choose_tokens(scores, candidates, wanted)
    rows, columns = np.nonzero(chosen)
    labels = input_ids[rows, columns].astype(np.int64)
    # The draws behind those of the scores: two for every position, taken where they are needed.
    action_bits = random_bits_at(keys[rows], columns + draws)
    token_bits = random_bits_at(keys[rows], columns + 2 * draws)
    masked = input_ids.copy()
    masked[rows, columns] = _replacements(labels, action_bits, token_bits, settings)
    places = _places_in_rows(chosen)
    shape = (len(chosen), options.max_predictions_per_seq)
    positions, label_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    weights = np.zeros(shape, np.float32)
    positions[rows, places] = columns
    label_ids[rows, places] = labels
    weights[rows, places] = 1
    return MaskedBatch(masked, positions, label_ids, weights)


def _sort_keys(scores: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Keys [B, S] that sort candidates by score, before all others, and the mask of their columns.

    The lowest bits are the column: no two keys of a row are equal, so that every sorting algorithm
    gives the same order.
    """
    seq_length = scores.shape[1]
    column_mask = np.uint64((1 << (seq_length - 1).bit_length()) - 1)
    keys = (scores >> np.uint64(1)) & ~column_mask
    keys |= (~candidates).astype(np.uint64) << np.uint64(63)
    return keys | np.arange(seq_length, dtype=np.uint64), column_mask


def _choose_tokens(scores: np.ndarray, candidates: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Chooses the ``wanted`` [B] candidates [B, S] with the lowest scores; bool [B, S]."""
    keys, _ = _sort_keys(scores, candidates)
    last = np.take_along_axis(np.sort(keys, axis=1), wanted[:, None] - 1, axis=1)
    return (keys <= last) & candidates


def _choose_words(
    scores: np.ndarray, candidates: np.ndarray, wanted: np.ndarray, word_starts: np.ndarray
) -> np.ndarray:
    """Goes through each sequence's words in random order and takes those that still fit."""
    words, sizes, order = _words_in_random_order(scores, candidates, word_starts)
    rows = np.arange(len(candidates))
    chosen_words = np.zeros_like(candidates)
    left = wanted.copy()
    for turn in range(int((sizes > 0).sum(axis=1).max(initial=0))):
        word = order[:, turn]
        size = sizes[rows, word]
        fits = (size > 0) & (size <= left)
        chosen_words[rows, word] = fits
        left -= np.where(fits, size, 0)
        if not left.any():
            break
    return chosen_words[rows[:, None], words] & candidates


def _choose_ngrams(
    scores: np.ndarray,
    counts: np.ndarray,
    candidates: np.ndarray,
    wanted: np.ndarray,
    word_starts: np.ndarray,
) -> np.ndarray:
    """Goes through each sequence's words in random order and takes the n-grams that still fit.

    An n-gram that reaches the end of its segment continues at the segment's first word. Otherwise
    the first words, which fewer n-grams reach, would be chosen a third less often than the others.
    ``counts`` [B, S] are the numbers of words of the n-grams that begin with each word.
    """
    words, sizes, order = _words_in_random_order(scores, candidates, word_starts)
    rows, places = np.arange(len(candidates))[:, None], np.arange(counts.max(initial=1))
    columns = np.arange(sizes.shape[1])
    is_word = sizes > 0  # special tokens and padding, between and behind segments, have no size
    begins = 1 + np.maximum.accumulate(np.where(is_word, -1, columns), axis=1)
    ends = np.where(is_word, len(columns), columns)[:, ::-1]
    lengths = np.minimum.accumulate(ends, axis=1)[:, ::-1] - begins
    sizes = np.pad(sizes, ((0, 0), (0, 1)))  # a column that is no word
    taken = np.zeros(sizes.shape, bool)
    left = wanted[:, None]
    for turn in range(int(is_word.sum(axis=1).max(initial=0))):
        first = order[:, turn, None]
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
    return taken[rows, words] & candidates


def _ngram_shares(options: MaskingOptions) -> np.ndarray:
    """The shares of n-grams of 1, 2, ... words: [ngram]."""
    shares = 1 / np.arange(1, options.ngram + 1)
    return (shares if options.favor_shorter_ngram else shares[::-1]) / shares.sum()


def _words_in_random_order(
    scores: np.ndarray, candidates: np.ndarray, word_starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The words of each sequence, [B, S] each: every position's word, their sizes, and their order.

    A word's size is its number of candidates; those without any are last in order.
    """
    num_sequences, seq_length = candidates.shape
    words = np.maximum(np.cumsum(word_starts != 0, axis=1) - 1, 0)
    flat = (np.arange(num_sequences)[:, None] * seq_length + words)[candidates]
    sizes = np.bincount(flat, minlength=candidates.size).reshape(candidates.shape)
    keys, column_mask = _sort_keys(scores, sizes > 0)
    return words, sizes, (np.sort(keys, axis=1) & column_mask).astype(np.int64)


def _replacements(
    labels: np.ndarray, action_bits: np.ndarray, token_bits: np.ndarray, settings: MaskingSettings
) -> np.ndarray:
    """What the chosen tokens become: [MASK], themselves, or random ones; int64, as ``labels``."""
    special = np.array(sorted(set(settings.special_ids.values())), np.int64)
    random_ids = bits_to_integers(token_bits, settings.vocab_size - len(special))
    for special_id in special:  # in ascending order, so that the ids left over are hit evenly
        random_ids += random_ids >= special_id
    action = bits_to_uniform(action_bits)
    kept = np.where(action < _MASK_SHARE + _KEEP_SHARE, labels, random_ids)
    return np.where(action < _MASK_SHARE, settings.special_ids["mask"], kept)


def _places_in_rows(chosen: np.ndarray) -> np.ndarray:
    """The number of each chosen position among those of its row, in the order of ``nonzero``."""
    counts = chosen.sum(axis=1)
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
