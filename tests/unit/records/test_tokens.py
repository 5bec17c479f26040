"""Tokens before masking, and the sentences about padding and unknown ones."""

import numpy as np
import pytest

from bert_tf.records.tokens import original_ids, text_positions, unusual_shares

# [CLS] 7 8 [SEP], of which 7 and 8 are masked; one record has padding in place of the last two.
BATCH = {
    "input_ids": np.array([[2, 4, 4, 3], [2, 9, 0, 0]]),
    "input_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "masked_lm_positions": np.array([[1, 2], [0, 0]]),
    "masked_lm_ids": np.array([[7, 8], [0, 0]]),
    "masked_lm_weights": np.array([[1.0, 1.0], [0.0, 0.0]], np.float32),
}


def test_ids_before_masking():
    assert original_ids(BATCH).tolist() == [[2, 7, 8, 3], [2, 9, 0, 0]]
    assert BATCH["input_ids"].tolist() == [[2, 4, 4, 3], [2, 9, 0, 0]]
    unmasked = {name: BATCH[name] for name in ("input_ids", "input_mask")}
    assert original_ids(unmasked).tolist() == BATCH["input_ids"].tolist()


def test_text_is_without_special_tokens_whose_ids_are_known():
    ids, mask = original_ids(BATCH), BATCH["input_mask"]
    known = text_positions(ids, mask, {"pad": 0, "cls": 2, "sep": 3, "unk": 9})
    assert known.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert text_positions(ids, mask, {}).tolist() == (mask != 0).tolist()


@pytest.mark.parametrize(
    ("padding", "unknown", "words"),
    [
        (0.5, 0.05, []),
        (0.51, 0.0, ["51.0% of all positions are padding"]),
        (0.6, 0.2, ["60.0% of all positions", "20.0% of the tokens are unknown"]),
    ],
)
def test_unusual_shares(padding, unknown, words):
    found = list(unusual_shares(padding=padding, unknown=unknown))
    assert len(found) == len(words)
    assert all(part in sentence for part, sentence in zip(words, found))
