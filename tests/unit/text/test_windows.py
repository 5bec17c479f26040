"""What is kept of texts that are too long together, and windows over them, word by word."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_tf.text.windows import kept_counts, windows_of, windows_of_words


def popped(counts, room):
    """One token after the other, as google-research/bert describes it."""
    kept = list(counts)
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    return kept


def test_pairs_lose_the_ends_of_the_longer_text():
    for first, second, room in itertools.product(range(7), range(7), range(2, 9)):
        assert kept_counts([first, second], room) == popped([first, second], room)


def test_a_single_text_loses_its_end():
    assert kept_counts([9], 5) == [5]
    assert kept_counts([3], 5) == [3]


@hypothesis.given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 25))
def test_windows_of_tokens_begin_a_stride_apart(num_tokens, room, stride):
    """As google-research/bert's run_squad.py makes them."""
    expected, first = [], 0
    while first < num_tokens:
        length = min(num_tokens - first, room)
        expected.append((first, length))
        if first + length == num_tokens:
            break
        first += min(length, stride)
    assert windows_of(num_tokens, room, stride) == expected


@st.composite
def sentences_and_lengths(draw):
    """The numbers of pieces of a sentence's words, room for each word, and a stride."""
    room = draw(st.integers(1, 20))
    longest = draw(st.integers(1, room))
    words = st.lists(st.integers(1, longest), min_size=1, max_size=60)
    return draw(words), room, draw(st.integers(1, room))


def contexts(num_pieces, window, word):
    """The tokens to the left and to the right of a word in a window."""
    inside = range(*window.words.indices(len(num_pieces)))
    left = sum(num_pieces[n] for n in inside if n < word)
    return left, sum(num_pieces[n] for n in inside if n > word)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(sentences_and_lengths())
def test_every_word_is_scored_once_where_it_has_the_most_context(given):
    num_pieces, room, stride = given
    windows = windows_of_words(num_pieces, room, stride)
    scored = [range(len(num_pieces))[window.scored] for window in windows]
    assert [word for words in scored for word in words] == list(range(len(num_pieces)))
    for window, words in zip(windows, scored):
        assert sum(num_pieces[window.words]) <= room
        assert words, "a window without a word to score would be computed for nothing"
        for word in words:
            having = [w for w in windows if w.words.start <= word < w.words.stop]
            best = max(having, key=lambda w: min(contexts(num_pieces, w, word)))
            assert window == best, "the first of those with the most context"


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(sentences_and_lengths())
def test_context_on_both_sides_wherever_the_sentence_has_it(given):
    """Half of what windows share, which is what they have room for beyond the stride.

    Words of several pieces make windows shorter and later by less than such a word each.
    """
    num_pieces, room, stride = given
    longest = max(num_pieces)
    shared = room - max(stride, longest) - 2 * (longest - 1)
    least = max(0, (shared - longest + 1) // 2)
    for window in windows_of_words(num_pieces, room, stride):
        for word in range(len(num_pieces))[window.scored]:
            left, right = contexts(num_pieces, window, word)
            assert left >= min(least, sum(num_pieces[:word]))
            assert right >= min(least, sum(num_pieces[word + 1 :]))


@pytest.mark.parametrize(
    ("num_pieces", "stride", "expected"),
    [
        ([1] * 6, 3, [((0, 6), (0, 6))]),
        ([1] * 9, 3, [((0, 6), (0, 5)), ((3, 9), (5, 9))]),
        ([1] * 12, 3, [((0, 6), (0, 5)), ((3, 9), (5, 8)), ((6, 12), (8, 12))]),
        ([1] * 9, 6, [((0, 6), (0, 6)), ((6, 9), (6, 9))]),
        # The second window starts at the word that begins at most three tokens later ...
        ([1, 1, 2, 1, 1, 1], 3, [((0, 5), (0, 3)), ((2, 6), (3, 6))]),
        # ... or so late that it has one more word.
        ([1, 1, 1, 1, 1, 5], 2, [((0, 5), (0, 5)), ((4, 6), (5, 6))]),
        ([6, 6], 1, [((0, 1), (0, 1)), ((1, 2), (1, 2))]),
    ],
)
def test_windows_of_six_tokens(num_pieces, stride, expected):
    found = windows_of_words(num_pieces, 6, stride)
    assert [
        ((w.words.start, w.words.stop), (w.scored.start, w.scored.stop)) for w in found
    ] == expected
