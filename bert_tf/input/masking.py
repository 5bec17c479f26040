"""The masks of the masked language model, for both data preparation and training time.

The rules are those of the BERT paper (Devlin et al. 2018, appendix A.1) and of google-research/bert
(create_pretraining_data.py): round(0.15 x length) tokens of a sequence are predicted; of these 80%
become [MASK], 10% a random token, 10% are kept. One deliberate difference is that a random token is
never a special one. What is chosen together, such as whole words, is in mask_choosers.py.

Symbols: B sequences, S positions, P predictions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.stateless_random import (
    IntegerArray,
    bits_to_integers,
    bits_to_uniform,
    derive_keys,
    random_bits_at,
    sort_keys,
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
        options = dataclasses.replace(self.options, **changes)
        return MaskingSettings(options, self.vocab_size, self.special_ids)


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
    candidates = np.arange(seq_length) < lengths[:, None]
    for name in ("pad", "cls", "sep"):
        candidates &= input_ids != settings.special_ids[name]
    wanted = np.clip(
        np.round((lengths if counted is None else counted) * options.masked_lm_prob),
        1,
        options.max_predictions_per_seq,
    ).astype(np.int64)
    draws = whole_length or seq_length  # of each kind

    def draw(kind: int) -> np.ndarray:
        return random_bits_at(keys[:, None], kind * draws + np.arange(seq_length))

    chosen, deciding = _choose(options, candidates, wanted, word_starts, draw)
    rows, columns = np.nonzero(chosen)
    labels = input_ids[rows, columns].astype(np.int64)
    # The draws behind those of the scores: two for every position, taken where they are needed.
    deciding = columns if deciding is None else deciding[rows, columns]
    action_bits = random_bits_at(keys[rows], deciding + draws)
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


def _choose(
    options: MaskingOptions,
    candidates: np.ndarray,
    wanted: np.ndarray,
    word_starts: np.ndarray | None,
    draw: Callable[[int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray | None]:
    """As the choosers of mask_choosers.py, which are for what is chosen together."""
    if not options.together:
        return _choose_tokens(draw(0), candidates, wanted), None
    if options.needs_words and word_starts is None:
        raise ValueError("masking whole words needs word_starts")
    from bert_tf.input.mask_choosers import CHOOSERS, Maskable

    starts = word_starts if options.needs_words else None
    choose = CHOOSERS[options.together[-1]]
    return choose(Maskable(candidates, wanted, starts, draw), options)


def _choose_tokens(scores: np.ndarray, candidates: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Chooses the ``wanted`` [B] candidates [B, S] with the lowest scores; bool [B, S]."""
    keys, _ = sort_keys(scores, candidates)
    last = np.take_along_axis(np.sort(keys, axis=1), wanted[:, None] - 1, axis=1)
    return (keys <= last) & candidates


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
