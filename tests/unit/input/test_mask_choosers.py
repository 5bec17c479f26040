"""What is masked together: the masks of earlier versions, and spans as in the SpanBERT paper."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.mask_choosers import CHOOSERS
from bert_tf.input.masking import MaskedBatch, MaskingSettings, example_keys, mask_batch
from bert_tf.input.stateless_random import random_bits
from tests.helpers.masked_sequences import CLS, MASK, SEP, SPECIAL, batches, segments_of, words_of

V = 50
# Joshi et al. 2020, section 3.1: a geometric distribution with p = 0.2, clipped at 10 words.
SHARES = np.array([0.2 * 0.8 ** (n - 1) for n in range(1, 11)]) / (1 - 0.8**10)


def masks_of(ids, lengths, starts, options, *, seed=1) -> MaskedBatch:
    return mask_batch(
        ids,
        lengths,
        keys=example_keys(seed, np.arange(len(ids))),
        settings=MaskingSettings(options, V, SPECIAL),
        word_starts=starts,
    )


def test_masks_are_those_of_earlier_versions():
    """All schemes without spans, over many settings; their bits were the same before spans."""
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
    assert (*every, *MaskingOptions(span_masking=True).together) == tuple(CHOOSERS)


def choose_like_the_paper(segments, wanted, order, lengths):
    """Spans by the rule of the paper: lists of (segment, word number), in order of choice.

    ``order`` are the words as they are tried, ``lengths`` the drawn numbers of words of theirs.
    """
    spans: list = []
    masked: set = set()
    left = wanted
    for segment, first in order:
        span: list = []
        for number in range(first, len(segments[segment])):
            size = len(segments[segment][number])
            is_full = len(span) == lengths[segment, first]
            if is_full or (segment, number) in masked or size > left:
                break
            span.append((segment, number))
            masked.add((segment, number))
            left -= size
        spans += [span] if span else []
    return spans


def replaced(token, span, column, bits):
    """What a token becomes: the span decides what kind of token, and each token draws its own."""
    action = (int(bits[1, span]) >> 11) / 2**53
    if action < 0.8:
        return MASK
    drawn = 5 + int((int(bits[2, column]) >> 11) / 2**53 * (V - 5))
    return token if action < 0.8 + 0.1 else drawn


span_options = st.builds(
    MaskingOptions,
    st.sampled_from([0.01, 0.15, 0.4, 1.0]),
    st.integers(1, 40),
    do_whole_word_mask=st.booleans(),
    span_masking=st.just(True),
)


@settings(max_examples=100, deadline=None)
@given(batch=batches(), options=span_options, seed=st.integers(0, 2**64 - 1))
def test_spans_are_those_of_the_paper_for_the_same_draws(batch, options, seed):
    ids, lengths, starts = batch
    masked = masks_of(ids, lengths, starts, options, seed=seed)
    seq_length = ids.shape[1]
    keys = example_keys(seed, np.arange(len(ids)))
    drawn = random_bits(keys, 4 * seq_length).reshape(len(ids), 4, seq_length)
    for row, length in enumerate(lengths):
        bits, segments = drawn[row], segments_of(ids[row], starts[row], length)
        number_of, scores, words = {}, {}, {}
        for segment, number in (
            (segment, number)
            for segment, of_segment in enumerate(segments)
            for number in range(len(of_segment))
        ):
            place = segment, number
            first = segments[segment][number][0]
            number_of[place] = starts[row, : first + 1].astype(bool).sum() - 1
            scores[place] = bits[0, number_of[place]]
            uniform = (int(bits[3, number_of[place]]) >> 11) / 2**53
            words[place] = 1
            while uniform > sum(SHARES[: words[place]]):
                words[place] += 1
        wanted = min(
            options.max_predictions_per_seq, max(1, round(length * options.masked_lm_prob))
        )
        spans = choose_like_the_paper(segments, wanted, sorted(scores, key=scores.get), words)
        expected = ids[row].copy()
        for span in spans:
            for segment, number in span:
                for column in segments[segment][number]:
                    expected[column] = replaced(ids[row, column], number_of[span[0]], column, bits)
        positions = sorted(
            column
            for span in spans
            for segment, number in span
            for column in segments[segment][number]
        )
        found = masked.positions[row][masked.weights[row] > 0]
        assert found.tolist() == positions
        assert masked.input_ids[row].tolist() == expected.tolist()


def test_the_distribution_of_the_paper():
    """Figure 2, and the mean that section 3.1 names."""
    assert SHARES.sum() == pytest.approx(1)
    assert SHARES[0] == pytest.approx(0.224, abs=5e-4)
    assert SHARES @ np.arange(1, 11) == pytest.approx(3.8, abs=5e-3)


def test_lengths_of_spans():
    """Of the first spans, which are not shortened; those that begin near the end are left out.

    The first one begins with the word of the lowest score. Another one is beside it in fewer than
    1 % of the sequences.
    """
    count, length = 5000, 800
    ids, seed = np.full((count, length), 9), 5
    options = MaskingOptions(1.0, 10, span_masking=True)
    masked = masks_of(ids, np.full(count, length), np.ones_like(ids), options, seed=seed)
    first = random_bits(example_keys(seed, np.arange(count)), length).argmin(axis=1)
    chosen = np.zeros((count, length + 10), bool)
    np.put_along_axis(chosen, masked.positions, masked.weights > 0, axis=1)
    assert chosen[np.arange(count), first].all()
    behind = chosen[np.arange(count)[:, None], first[:, None] + np.arange(11)]
    lengths = behind.argmin(axis=1)[first < length - 10]
    found = np.bincount(lengths, minlength=11)[1:] / len(lengths)
    # Five standard deviations, and the neighbours.
    assert (np.abs(found - SHARES) < 5 * np.sqrt(SHARES / len(lengths)) + 0.01).all()
    assert lengths.mean() == pytest.approx(3.8, abs=0.2)


def pairs(count, *, pieces):
    """Pairs of 128 tokens with words of one token, or also of two and three."""
    ids = np.full((count, 128), 9)
    ids[:, [0, 60, 127]] = CLS, SEP, SEP
    starts = np.ones_like(ids)
    if pieces:
        rng = np.random.default_rng(0)
        starts[:, 2:] = rng.random((count, 126)) < 0.6
        starts[:, [60, 61, 127]] = 1
    return ids, np.full(count, 128), starts


def chosen_in(masked, ids):
    chosen = np.zeros(ids.shape, bool)
    np.put_along_axis(chosen, masked.positions, masked.weights > 0, axis=1)
    return chosen


def test_fifteen_percent_are_masked_in_total():
    options = MaskingOptions(span_masking=True)
    ids, lengths, starts = pairs(2000, pieces=False)
    assert (masks_of(ids, lengths, starts, options).weights.sum(axis=1) == 19).all()
    ids, lengths, starts = pairs(2000, pieces=True)
    # What is left is less than any word that is left: some sequences have no word of one token.
    weights = masks_of(ids, lengths, starts, options).weights
    assert 18.9 < weights.sum(axis=1).mean() <= 19


def test_whole_spans_are_replaced():
    """80 % of spans become [MASK], 10 % stay and 10 % are random; these have five tokens."""
    count = 20_000
    ids, lengths = np.full((count, 50), 9), np.full(count, 50)
    starts = np.broadcast_to(np.arange(50) % 5 == 0, ids.shape)
    masked = masks_of(ids, lengths, starts, MaskingOptions(1.0, 5, span_masking=True))
    assert (masked.weights == 1).all()
    outcome = np.take_along_axis(masked.input_ids, masked.positions, axis=1)
    are_masks, are_kept = outcome == MASK, outcome == 9
    assert (are_masks.all(axis=1) == are_masks.any(axis=1)).all()
    assert are_masks[:, 0].mean() == pytest.approx(0.8, abs=5 * np.sqrt(0.8 * 0.2 / count))
    # Five random tokens are the original ones once in 45**5.
    kept = are_kept.all(axis=1).mean()
    assert kept == pytest.approx(0.1, abs=5 * np.sqrt(0.1 * 0.9 / count))


def test_spans_stay_in_their_segment_and_the_first_words_are_in_fewer():
    """No span begins before the first word of a segment, and none goes on behind its last one."""
    ids, lengths, starts = pairs(5000, pieces=False)
    chosen = chosen_in(masks_of(ids, lengths, starts, MaskingOptions(span_masking=True)), ids)
    fractions = chosen.mean(axis=0)
    assert not fractions[[0, 60, 127]].any()
    for first, last in ((1, 59), (61, 126)):
        of_words = fractions[first : last + 1]
        assert of_words[0] < 0.4 * of_words[10:].mean()
        assert (np.diff(of_words[:4]) > 0).all()
        assert np.abs(of_words[10:] - of_words[10:].mean()).max() < 5 * np.sqrt(0.16 * 0.84 / 5000)


def test_a_word_that_does_not_fit_is_skipped():
    ids = np.array([[CLS, 9, 9, 9, 9, 9, SEP]])
    starts = np.array([[1, 1, 0, 0, 0, 1, 1]])
    masked = masks_of(ids, np.array([7]), starts, MaskingOptions(0.3, 20, span_masking=True))
    assert masked.positions[0, :2].tolist() == [5, 0]
    assert words_of(ids[0], starts[0], 7) == [[1, 2, 3, 4], [5]]


def test_spans_need_the_starts_of_words():
    ids = np.full((1, 10), 9)
    with pytest.raises(ValueError, match="word_starts"):
        masks_of(ids, np.array([10]), None, MaskingOptions(span_masking=True))
