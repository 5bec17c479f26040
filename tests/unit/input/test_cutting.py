"""Cut records against google's truncation, token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.input.cutting import cut_predictions, cut_records
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED

S, P, CLS, SEP, MASK = 32, 6, 2, 3, 4


def record(first, second, *, masked=()):
    """A record of numbered words, of which those at places ``masked`` are predicted."""
    tokens = [CLS, *range(100, 100 + first), SEP]
    segments = [0] * len(tokens)
    if second:
        tokens += [*range(200, 200 + second), SEP]
        segments += [1] * (second + 1)
    padding = [0] * (S - len(tokens))
    found = {
        "input_ids": tokens + padding,
        "input_mask": [1] * len(tokens) + padding,
        "segment_ids": segments + padding,
        "next_sentence_labels": [1],
    }
    unused = [0] * (P - len(masked))
    found["masked_lm_positions"] = [*masked, *unused]
    found["masked_lm_ids"] = [tokens[place] for place in masked] + unused
    found["masked_lm_weights"] = np.array([1] * len(masked) + unused, np.float32)
    for place in masked:
        found["input_ids"][place] = MASK
    return {name: np.asarray(values) for name, values in found.items()}


def batch(*records):
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def truncated(first, second, length):
    """The words of both segments after ``truncate_seq_pair``, which drops one at a time."""
    first, second = list(range(100, 100 + first)), list(range(200, 200 + second))
    room = length - (3 if second else 2)
    while len(first) + len(second) > room:
        if not second:
            first.pop()
        elif len(first) > len(second):
            first.pop(0)
        else:
            second.pop()
    return [CLS, *first, SEP, *([*second, SEP] if second else [])]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(0, 14)), min_size=1, max_size=5),
    length=st.sampled_from([8, 16, 24, S]),
)
def test_words_are_dropped_as_by_google(sizes, length):
    whole = batch(*(record(*size) for size in sizes))
    del whole["masked_lm_positions"]
    whole["word_starts"] = whole["input_ids"] % 2
    before = {name: values.copy() for name, values in whole.items()}
    left = cut_records(whole, length, predictions=0)
    for row, size in enumerate(sizes):
        expected = truncated(*size, length)
        padding = [0] * (length - len(expected))
        assert left["input_ids"][row].tolist() == expected + padding
        assert left["input_mask"][row].tolist() == [1] * len(expected) + padding
        second = len(expected) - expected.index(SEP) - 1
        segments = [0] * (len(expected) - second) + [1] * second
        assert left["segment_ids"][row].tolist() == segments + padding
    np.testing.assert_array_equal(left["word_starts"], left["input_ids"] % 2)
    np.testing.assert_array_equal(left["next_sentence_labels"], whole["next_sentence_labels"])
    for name, values in before.items():
        np.testing.assert_array_equal(whole[name], values)


def predictions_of(left, row):
    """(position, word) of what is predicted of a record."""
    columns = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    found = zip(*(left[name][row].tolist() for name in columns))
    return [(position, word) for position, word, weight in found if weight]


def test_stored_masks_move_with_their_words():
    pair = record(14, 9, masked=[1, 9, 13, 17, 20, 24])
    single = record(26, 0, masked=[2, 5, 11, 20, 26])
    short = record(3, 4, masked=[1, 6])
    left = cut_records(batch(pair, single, short), 16, predictions=3)
    # Of the pair 7 + 6 words are left: 107 to 113, and 200 to 205.
    assert left["input_ids"][0].tolist() == [
        *[CLS, 107, MASK, 109, 110, 111, MASK, 113, SEP],
        *[200, MASK, 202, 203, 204, 205, SEP],
    ]
    assert predictions_of(left, 0) == [(2, 108), (6, 112), (10, 201)]
    assert predictions_of(left, 1) == [(2, 101), (5, 104), (11, 110)]
    assert predictions_of(left, 2) == [(1, 100), (6, 201)]
    assert left["masked_lm_positions"].shape == (3, 3)
    unused = left["masked_lm_weights"] == 0
    assert not left["masked_lm_ids"][unused].any()


def test_predictions_beyond_the_share_get_their_words_back():
    whole = batch(record(26, 0, masked=[1, 3, 5, 7, 9, 20]))
    left = cut_records(whole, 16, predictions=3)
    assert predictions_of(left, 0) == [(1, 100), (3, 102), (5, 104)]
    assert left["input_ids"][0].tolist() == [
        *[CLS, MASK, 101, MASK, 103, MASK, *range(105, 114), SEP]
    ]


def test_types_stay():
    whole = {name: values.astype(np.int32) for name, values in batch(record(26, 0)).items()}
    whole["masked_lm_weights"] = whole["masked_lm_weights"].astype(np.float32)
    left = cut_records(whole, 16, predictions=3)
    assert {name: values.dtype for name, values in left.items()} == {
        name: values.dtype for name, values in whole.items()
    }


@pytest.mark.parametrize("spec", [PRETRAINING_MASKED, PRETRAINING_UNMASKED])
def test_every_feature_of_positions_is_cut(spec):
    whole = {**batch(record(26, 0)), "word_starts": np.ones((1, S), np.int64)}
    whole = {feature.name: whole[feature.name] for feature in spec.features}
    left = cut_records(whole, 8, predictions=2)
    assert {values.shape[1] for values in left.values()} <= {8, 2, 1}


def test_the_share_of_predictions():
    assert [cut_predictions(20, 128, length) for length in (128, 64, 72, 8)] == [20, 10, 12, 2]
