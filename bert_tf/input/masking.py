"""The masks of the masked language model, for both data preparation and training time.

The rules are those of the BERT paper (Devlin et al. 2018, appendix A.1) and of google-research/bert
(create_pretraining_data.py): round(0.15 x length) tokens of a sequence are predicted; of these 80%
become [MASK], 10% a random token, 10% are kept. With whole words, the pieces of a word are chosen
together, and a word that would exceed the number of predictions is skipped. There are two
deliberate differences: a random token is never a special one, and the rest of a word that was cut
off at the start of a segment counts as a separate word, whereas google's code adds it to the last
word of the previous segment.

Symbols: B sequences, S positions, P predictions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from bert_tf.input.stateless_random import (
    IntegerArray,
    bits_to_integers,
    bits_to_uniform,
    derive_keys,
    random_bits,
)

_MASK_SHARE = 0.8
_KEEP_SHARE = 0.1
_ROUNDING = 1e-9  # 20 * (0.3 / 0.3) may be more than 20
_MASK_STREAM = 0x6D61736B  # separates these draws from others with the same seed


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
    """How masks are drawn.

    Attributes:
      masked_lm_prob: share of a sequence's tokens, including [CLS] and [SEP], to predict.
      max_predictions_per_seq: P, maximum number of predictions in a sequence.
      vocab_size: random tokens are drawn from the ids below it.
      special_ids: ids by the names "pad", "unk", "cls", "sep" and "mask", as in a manifest. None is
        drawn as a random token; [PAD], [CLS] and [SEP] are never predicted, while an unknown word
        can be, as in google's code.
      do_whole_word_mask: choose all pieces of a word together.
    """

    masked_lm_prob: float
    max_predictions_per_seq: int
    vocab_size: int
    special_ids: Mapping[str, int]
    do_whole_word_mask: bool = False

    def __post_init__(self):
        if not 0 < self.masked_lm_prob <= 1 or self.max_predictions_per_seq < 1:
            raise ValueError(
                f"masked_lm_prob {self.masked_lm_prob} must be in (0, 1] and "
                f"max_predictions_per_seq {self.max_predictions_per_seq} at least 1"
            )


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
        """Those of a position: fewer predictions too, where the share is not the largest."""
        share = self.at(position)
        most = settings.max_predictions_per_seq * share / max(self.first, self.last)
        return dataclasses.replace(
            settings, masked_lm_prob=share, max_predictions_per_seq=math.ceil(most - _ROUNDING)
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
) -> MaskedBatch:
    """Draws masks for a batch; those of a sequence depend only on its content and key.

    Args:
      input_ids: integer [B, S].
      lengths: integer [B], tokens of each sequence before its padding.
      keys: uint64 [B], see :func:`example_keys`.
      settings: how many and which.
      word_starts: [B, S], true where a word or special token begins; whole words need it.
    """
    num_sequences, seq_length = input_ids.shape
    bits = random_bits(keys, 3 * seq_length).reshape(num_sequences, 3, seq_length)
    candidates = np.arange(seq_length) < lengths[:, None]
    for name in ("pad", "cls", "sep"):
        candidates &= input_ids != settings.special_ids[name]
    wanted = np.clip(
        np.round(lengths * settings.masked_lm_prob), 1, settings.max_predictions_per_seq
    ).astype(np.int64)
    if settings.do_whole_word_mask:
        if word_starts is None:
            raise ValueError("masking whole words needs word_starts")
        chosen = _choose_words(bits[:, 0], candidates, wanted, word_starts)
    else:
        chosen = _choose_tokens(bits[:, 0], candidates, wanted)
    masked = np.where(chosen, _replacements(input_ids, bits[:, 1], bits[:, 2], settings), input_ids)
    return _collect(input_ids, masked, chosen, settings.max_predictions_per_seq)


def _choose_tokens(scores: np.ndarray, candidates: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Chooses the ``wanted`` [B] candidates [B, S] with the lowest scores; bool [B, S]."""
    # The highest bit orders candidates before all others, so one sort key will do.
    scores = (scores >> np.uint64(1)) | (~candidates).astype(np.uint64) << np.uint64(63)
    order = np.argsort(scores, axis=1, kind="stable")
    chosen = np.zeros_like(candidates)
    first = np.arange(candidates.shape[1]) < wanted[:, None]
    np.put_along_axis(chosen, order, first, axis=1)
    return chosen & candidates


def _choose_words(
    scores: np.ndarray, candidates: np.ndarray, wanted: np.ndarray, word_starts: np.ndarray
) -> np.ndarray:
    """Goes through each sequence's words in random order and takes those that still fit."""
    num_sequences, seq_length = candidates.shape
    rows = np.arange(num_sequences)
    words = np.maximum(np.cumsum(word_starts != 0, axis=1) - 1, 0)
    flat = (rows[:, None] * seq_length + words)[candidates]
    sizes = np.bincount(flat, minlength=candidates.size).reshape(candidates.shape)
    order = np.argsort(
        (scores >> np.uint64(1)) | (sizes == 0).astype(np.uint64) << np.uint64(63),
        axis=1,
        kind="stable",
    )
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


def _replacements(
    input_ids: np.ndarray,
    action_bits: np.ndarray,
    token_bits: np.ndarray,
    settings: MaskingSettings,
) -> np.ndarray:
    """What each position becomes if it is chosen: [MASK], itself, or a random token; [B, S]."""
    special = np.array(sorted(set(settings.special_ids.values())), np.int64)
    random_ids = bits_to_integers(token_bits, settings.vocab_size - len(special))
    for special_id in special:  # in ascending order, so that the ids left over are hit evenly
        random_ids += random_ids >= special_id
    action = bits_to_uniform(action_bits)
    return np.select(
        [action < _MASK_SHARE, action < _MASK_SHARE + _KEEP_SHARE],
        [np.full_like(random_ids, settings.special_ids["mask"]), input_ids.astype(np.int64)],
        random_ids,
    ).astype(input_ids.dtype)


def _collect(
    input_ids: np.ndarray, masked: np.ndarray, chosen: np.ndarray, max_predictions: int
) -> MaskedBatch:
    """Packs the chosen positions of each row to the left of [B, P] arrays, in ascending order."""
    rows, columns = np.nonzero(chosen)
    counts = chosen.sum(axis=1)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (len(chosen), max_predictions)
    positions, label_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    weights = np.zeros(shape, np.float32)
    positions[rows, places] = columns
    label_ids[rows, places] = input_ids[rows, columns]
    weights[rows, places] = 1
    return MaskedBatch(masked, positions, label_ids, weights)
