"""Windows against a slow implementation of google-research/bert's rules."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tasks.question_answering.windows import (
    Window,
    WindowSettings,
    cut_windows,
    has_max_context,
    question_windows,
)
from bert_tf.util.errors import UserError


def _naive_windows(question, context, max_seq_length, doc_stride):
    """Sets of tokens: moved by the stride until the last token is included."""
    room = max_seq_length - question - 3
    found, first = [], 0
    while context and (not found or context - 1 not in found[-1]):
        found.append([token for token in range(context) if first <= token < first + room])
        first += min(doc_stride, room)
    return found


@st.composite
def _cases(draw):
    max_query_length = draw(st.integers(1, 8))
    room = draw(st.integers(1, 12))
    stride = draw(st.integers(1, 15))
    lengths = WindowSettings(max_query_length + 3 + room, stride, max_query_length)
    return draw(st.integers(0, 12)), draw(st.integers(0, 60)), lengths


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_windows_are_googles(case):
    question, context, lengths = case
    lengths.validate()
    cut = min(question, lengths.max_query_length)
    expected = _naive_windows(cut, context, lengths.max_seq_length, lengths.doc_stride)
    windows = cut_windows(question, context, lengths)
    assert [list(range(first, first + count)) for first, count in windows] == expected
    whole = question_windows(list(range(question)), context, lengths)
    assert [(w.first_token, w.num_tokens) for w in whole] == windows
    for window in whole:
        assert window.question_ids == list(range(cut))
        assert window.length <= lengths.max_seq_length
        sequence = ["[CLS]", *window.question_ids, "[SEP]"]
        assert window.context_offset == len(sequence)
        assert window.length == len(sequence) + window.num_tokens + 1


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_a_token_has_most_context_in_exactly_one_window(case):
    question, context, lengths = case
    windows = cut_windows(question, context, lengths)
    for token in range(context):
        scores = {}
        for index, (first, count) in enumerate(windows):
            if first <= token < first + count:
                smaller = min(token - first, first + count - 1 - token)
                scores[index] = smaller + Fraction(count, 100)
        best = next(index for index in scores if scores[index] == max(scores.values()))
        assert [has_max_context(windows, i, token) for i in scores] == [i == best for i in scores]


def test_published_example():
    """From a comment in the published code: "bought" has most context in the third window."""
    lengths = WindowSettings(max_seq_length=9, doc_stride=3, max_query_length=1)
    windows = cut_windows(1, 11, lengths)
    assert windows == [(0, 5), (3, 5), (6, 5)]
    decides = [has_max_context(windows, index, 7) for index in range(3)]
    assert decides == [False, False, True]


def test_position_in_the_sequence():
    window = Window([7, 8], first_token=10, num_tokens=3)
    assert [window.position(token) for token in (9, 10, 12, 13)] == [None, 4, 6, None]


def test_one_window_if_everything_fits():
    lengths = WindowSettings()
    assert cut_windows(10, 371, lengths) == [(0, 371)]
    assert cut_windows(10, 372, lengths) == [(0, 371), (128, 244)]
    assert cut_windows(100, 400, lengths) == cut_windows(64, 400, lengths)
    assert cut_windows(10, 0, lengths) == []


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({"doc_stride": 0}, "--doc_stride=0 must be at least 1"),
        ({"max_query_length": 0}, "--max_query_length=0 must be at least 1"),
        ({"max_seq_length": 67}, "--max_seq_length=67 leaves no room .* give at least 68"),
        ({"max_query_length": 400}, "--max_query_length=400 .* give at least 404"),
    ],
)
def test_invalid_lengths(lengths, expected):
    with pytest.raises(UserError, match=expected):
        WindowSettings(**lengths).validate()
    WindowSettings(max_seq_length=68).validate()
