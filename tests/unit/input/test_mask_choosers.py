"""What is masked together."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.mask_choosers import CHOOSERS
from bert_tf.input.masking import MaskedBatch, MaskingSettings, example_keys, mask_batch
from tests.helpers.masked_sequences import CLS, SEP, SPECIAL

V = 50


def masks_of(ids, lengths, starts, options, *, seed=1) -> MaskedBatch:
    return mask_batch(
        ids,
        lengths,
        keys=example_keys(seed, np.arange(len(ids))),
        settings=MaskingSettings(options, V, SPECIAL),
        word_starts=starts,
    )


def test_masks_are_those_of_earlier_versions():
    """All schemes, over many settings."""
    rows, columns = np.indices((16, 64))
    lengths = 10 + 3 * np.arange(16)
    ids = 5 + (7 * rows + 3 * columns) % (V - 5)
    ids[columns >= lengths[:, None]] = 0
    ids[:, 0] = CLS
    ids[np.arange(16), lengths // 2] = ids[np.arange(16), lengths - 1] = SEP
    starts = (columns * columns + rows) % 3 > 0
    starts |= (columns < 2) | (ids == SEP) | np.roll(ids == SEP, 1, axis=1)
    digest = hashlib.sha256()
    amounts = itertools.product((0.05, 0.15, 0.4, 1.0), (1, 5, 20, 80))
    for (share, most), whole_words, ngram, shorter in itertools.product(
        amounts, (False, True), (1, 2, 3, 7), (True, False)
    ):
        masked = masks_of(
            ids, lengths, starts, MaskingOptions(share, most, whole_words, ngram, shorter)
        )
        for values in (masked.input_ids, masked.positions, masked.label_ids, masked.weights):
            digest.update(values.astype("<i4").tobytes())
    assert digest.hexdigest() == "49b3785d84f9f318ad159ba65b49cd4b637d11238139ab8ebd890f7313f8015f"


def test_every_setting_has_a_chooser():
    """Of those that were given, the last one decides."""
    every = MaskingOptions(do_whole_word_mask=True, ngram=2).together
    assert every == tuple(CHOOSERS)
