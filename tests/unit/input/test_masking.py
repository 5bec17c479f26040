from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.masking import MaskingSettings, MaskShares, example_keys, mask_batch
from bert_tf.input.stateless_random import random_bits
from tests.helpers.masked_sequences import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    UNK,
    batches,
    segments_of,
    words_of,
)

BASE = MaskingSettings(MaskingOptions(), vocab_size=50, special_ids=SPECIAL)


AMOUNTS = {
    "masked_lm_prob": st.sampled_from([0.01, 0.15, 0.4, 1.0]),
    "max_predictions_per_seq": st.integers(1, 40),
    "do_whole_word_mask": st.booleans(),
}
ngram_options = st.builds(
    MaskingOptions, ngram=st.integers(1, 5), favor_shorter_ngram=st.booleans(), **AMOUNTS
)
span_options = st.builds(MaskingOptions, span_masking=st.just(True), **AMOUNTS)
masking_options = ngram_options | span_options


@settings(max_examples=100, deadline=None)
@given(batch=batches(), options=masking_options, seed=st.integers(0, 2**64 - 1))
def test_padding_that_is_cut_changes_no_mask(batch, options, seed):
    ids, lengths, starts = batch
    masking = MaskingSettings(options, 50, SPECIAL)
    same = {"keys": example_keys(seed, np.arange(len(ids))), "settings": masking}
    whole = mask_batch(ids, lengths, word_starts=starts, **same)
    kept, length = lengths.max(), ids.shape[1]
    cut = mask_batch(
        ids[:, :kept], lengths, word_starts=starts[:, :kept], whole_length=length, **same
    )
    np.testing.assert_array_equal(cut.input_ids, whole.input_ids[:, :kept])
    for name in ("positions", "label_ids", "weights"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))


@settings(max_examples=150, deadline=None)
@given(batch=batches(), options=masking_options, seed=st.integers(0, 2**64 - 1))
def test_invariants(batch, options, seed):
    ids, lengths, starts = batch
    keys = example_keys(seed, np.arange(len(ids)))
    masking = MaskingSettings(options, 50, SPECIAL)
    masked = mask_batch(ids, lengths, keys=keys, settings=masking, word_starts=starts)
    assert masked.positions.shape == (len(ids), options.max_predictions_per_seq)
    assert masked.weights.dtype == np.float32
    for row, length in enumerate(lengths):
        count = int(masked.weights[row].sum())
        assert masked.weights[row].tolist() == [1.0] * count + [0.0] * (
            options.max_predictions_per_seq - count
        )
        positions = masked.positions[row, :count].tolist()
        assert positions == sorted(set(positions))
        assert not set(ids[row, positions]) & {CLS, SEP, PAD}
        assert all(position < length for position in positions)
        assert not masked.positions[row, count:].any()
        assert not masked.label_ids[row, count:].any()
        restored = masked.input_ids[row].copy()
        restored[positions] = masked.label_ids[row, :count]
        assert restored.tolist() == ids[row].tolist()
        wanted = min(
            options.max_predictions_per_seq, max(1, round(length * options.masked_lm_prob))
        )
        words = words_of(ids[row], starts[row], length)
        if options.needs_words:
            whole = [word for word in words if set(word) & set(positions)]
            assert all(set(word) <= set(positions) for word in whole)
            left = wanted - count
            assert left >= 0
            if options.ngram == 1:
                assert all(len(word) > left for word in words if word not in whole)
        elif options.ngram == 1:
            assert count == min(wanted, sum(map(len, words)))
        assert count <= wanted


@pytest.mark.parametrize("scheme", [{}, {"ngram": 3}, {"span_masking": True}], ids=str)
def test_each_mask_depends_on_its_own_sequence_and_key_only(scheme):
    masking = BASE.with_options(**scheme)
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 50, (6, 30))
    lengths = np.array([30, 10, 20, 30, 5, 1])
    starts = rng.random(ids.shape) < 0.6
    keys = example_keys(3, 8, np.arange(6))
    whole = mask_batch(ids, lengths, keys=keys, settings=masking, word_starts=starts)
    for part in (slice(0, 2), slice(2, 6), slice(4, 5)):
        cut = mask_batch(
            ids[part], lengths[part], keys=keys[part], settings=masking, word_starts=starts[part]
        )
        for name in ("input_ids", "positions", "label_ids", "weights"):
            np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name)[part])
    other = mask_batch(
        ids, lengths, keys=example_keys(3, 9, np.arange(6)), settings=masking, word_starts=starts
    )
    assert (other.positions != whole.positions).any()


def test_no_sequences_give_no_masks():
    empty = mask_batch(
        np.zeros((0, 8), np.int64),
        np.zeros(0, np.int64),
        keys=example_keys(1, np.arange(0)),
        settings=BASE,
    )
    assert empty.positions.shape == (0, 20)


def large_sample(**changes):
    """20,000 sequences of 128 equal words: (settings, ids, masked, chosen [N, S])."""
    masking = dataclasses.replace(BASE.with_options(**changes), vocab_size=1000)
    ids = np.full((20_000, 128), 500)
    ids[:, 0], ids[:, 60], ids[:, -1] = CLS, SEP, SEP
    keys = example_keys(1, np.arange(len(ids)))
    starts = np.ones_like(ids)
    masked = mask_batch(
        ids, np.full(len(ids), 128), keys=keys, settings=masking, word_starts=starts
    )
    chosen = np.zeros(ids.shape, bool)
    np.put_along_axis(chosen, masked.positions, masked.weights > 0, axis=1)
    return masking, ids, masked, chosen


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares_of_replacements(whole_words):
    """80% [MASK], 10% kept, 10% random; tolerances are 5 standard deviations of 380,000 draws."""
    masking, ids, masked, chosen = large_sample(do_whole_word_mask=whole_words)
    assert chosen.sum() == 20_000 * 19
    outcome = masked.input_ids[chosen]
    assert (masked.input_ids[~chosen] == ids[~chosen]).all()
    assert abs((outcome == MASK).mean() - 0.8) < 0.0033
    # A random token is the original one once in 995.
    assert abs((outcome == 500).mean() - 0.1 - 0.1 / 995) < 0.0025
    drawn = outcome[(outcome != MASK) & (outcome != 500)]
    assert abs(len(drawn) / len(outcome) - 0.1 * 994 / 995) < 0.0025
    assert not np.isin(drawn, list(SPECIAL.values())).any()
    counts = np.bincount(drawn, minlength=masking.vocab_size)
    counts = np.delete(counts, [*SPECIAL.values(), 500])
    expected = len(drawn) / 994
    assert ((counts - expected) ** 2 / expected).sum() < 993 + 5 * np.sqrt(2 * 993)


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("ngram", [1, 3])
def test_every_position_is_equally_likely(ngram, whole_words):
    """The first and the last of a segment as well; 5 standard deviations of chi-squared."""
    *_, chosen = large_sample(do_whole_word_mask=whole_words, ngram=ngram)
    counts = np.delete(chosen.sum(axis=0), [0, 60, 127])
    expected = 20_000 * 19 / 125
    assert ((counts - expected) ** 2 / expected).sum() < 124 + 5 * np.sqrt(2 * 124)


@pytest.mark.parametrize("favor_shorter", [True, False])
def test_ngrams_cover_segments_of_a_few_words_evenly(favor_shorter):
    ids = np.full((20_000, 9), 500)
    ids[:, [0, 3, 8]] = CLS, SEP, SEP  # segments of two and four words
    masking = BASE.with_options(ngram=3, favor_shorter_ngram=favor_shorter)
    keys = example_keys(1, np.arange(len(ids)))
    masked = mask_batch(ids, np.full(len(ids), 9), keys=keys, settings=masking)
    counts = np.bincount(masked.positions[masked.weights > 0], minlength=9)
    assert counts.sum() == len(ids)  # round(0.15 x 9) is 1
    for words in (counts[1:3], counts[4:8]):
        deviation = np.sqrt(words.mean())
        assert np.abs(words - words.mean()).max() < 5 * deviation


def test_the_share_may_be_of_some_tokens_only():
    ids = np.full((50, 17), 500)
    ids[:, [0, -1]] = CLS, SEP
    for counted, wanted in ((None, 3), (np.full(50, 15), 2)):  # 0.15 x 17 is 2.55, x 15 is 2.25
        keys = example_keys(1, np.arange(50))
        lengths = np.full(50, 17)
        masked = mask_batch(ids, lengths, keys=keys, settings=BASE, counted=counted)
        assert (masked.weights.sum(axis=1) == wanted).all()


def test_special_ids_anywhere_in_the_vocabulary_are_never_drawn():
    special = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 199}
    masking = MaskingSettings(MaskingOptions(1.0, 50), 200, special)
    ids = np.full((2000, 50), 7)
    keys = example_keys(1, np.arange(2000))
    masked = mask_batch(ids, np.full(2000, 50), keys=keys, settings=masking)
    assert set(np.unique(masked.input_ids)) == set(range(200)) - {0, 100, 101, 102}
    drawn = masked.input_ids[masked.input_ids != 199]
    assert (drawn == 198).sum() > 0  # the highest ordinary id is reached


def test_unknown_words_can_be_predicted():
    ids = np.full((1, 10), UNK)
    masking = BASE.with_options(masked_lm_prob=1.0)
    masked = mask_batch(ids, np.array([10]), keys=example_keys(1, 0), settings=masking)
    assert masked.weights.sum() == 10


def choose_like_google(words, wanted, rng):
    """The published selection rule, word by word."""
    order = list(words)
    rng.shuffle(order)
    chosen: list = []
    for word in order:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(word) <= wanted:
            chosen.extend(word)
    return chosen


def test_words_are_chosen_as_often_as_by_googles_rule():
    sizes = [1, 3, 2, 1, 4, 1, 2, 5, 1, 1]
    starts = np.array([[1] + [s for n in sizes for s in [1] + [0] * (n - 1)] + [1]])
    length = starts.shape[1]
    ids = np.array([[CLS] + [9] * (length - 2) + [SEP]])
    words = words_of(ids[0], starts[0], length)
    masking = BASE.with_options(masked_lm_prob=0.2, do_whole_word_mask=True)
    draws = 20_000
    masked = mask_batch(
        np.repeat(ids, draws, axis=0),
        np.full(draws, length),
        keys=example_keys(2, np.arange(draws)),
        settings=masking,
        word_starts=np.repeat(starts, draws, axis=0),
    )
    ours = np.bincount(masked.positions[masked.weights > 0], minlength=length) / draws
    rng = random.Random(0)
    reference = np.zeros(length)
    for _ in range(draws):
        reference[choose_like_google(words, round(length * 0.2), rng)] += 1 / draws
    assert np.abs(ours - reference).max() < 0.025  # 5 standard deviations of the difference


def choose_like_albert(segments, wanted, order, lengths):
    """google-research/albert's rule: the chosen words, as (segment, number) in order of choice.

    A segment's first word follows its last one, which is not so in google's. ``order`` are the
    words as they are tried, ``lengths`` the drawn numbers of words of theirs.
    """
    covered: list = []
    used = 0
    for segment, first in order:
        around = [*segments[segment][first:], *segments[segment][:first]]
        words = around[: lengths[segment, first]]
        while words and used + sum(map(len, words)) > wanted:
            words = words[:-1]
        numbers = range(first, first + len(words))
        names = [(segment, number % len(around)) for number in numbers]
        if not set(names) & set(covered):
            covered += names
            used += sum(map(len, words))
    return covered


@settings(max_examples=100, deadline=None)
@given(
    batch=batches(),
    options=ngram_options.filter(lambda options: options.ngram > 1),
    seed=st.integers(0, 2**64 - 1),
)
def test_ngrams_are_those_of_alberts_rule_for_the_same_draws(batch, options, seed):
    ids, lengths, starts = batch
    seq_length = ids.shape[1]
    if not options.do_whole_word_mask:
        starts = (np.arange(seq_length) < lengths[:, None]).astype(np.int64)
    keys = example_keys(seed, np.arange(len(ids)))
    masking = MaskingSettings(options, 50, SPECIAL)
    masked = mask_batch(ids, lengths, keys=keys, settings=masking, word_starts=starts)
    bits = random_bits(keys, 4 * seq_length).reshape(len(ids), 4, seq_length)
    weights = [1 / n for n in range(1, options.ngram + 1)]
    weights = weights if options.favor_shorter_ngram else weights[::-1]
    for row, length in enumerate(lengths):
        segments = segments_of(ids[row], starts[row], length)
        scores, drawn = {}, {}
        for segment, words in enumerate(segments):
            for number, word in enumerate(words):
                column = starts[row, : word[0] + 1].astype(bool).sum() - 1
                scores[segment, number] = bits[row, 0, column]
                uniform = (int(bits[row, 3, column]) >> 11) / 2**53
                drawn[segment, number] = 1
                while uniform > sum(weights[: drawn[segment, number]]) / sum(weights):
                    drawn[segment, number] += 1
        wanted = min(
            options.max_predictions_per_seq, max(1, round(length * options.masked_lm_prob))
        )
        chosen = choose_like_albert(segments, wanted, sorted(scores, key=scores.get), drawn)
        expected = sorted(
            place for segment, number in chosen for place in segments[segment][number]
        )
        found = masked.positions[row][masked.weights[row] > 0]
        assert found.tolist() == expected


@pytest.mark.parametrize("favor_shorter", [True, False])
def test_lengths_of_ngrams(favor_shorter):
    """Three masks of 600 tokens: how many runs they form follows from the shares of 1/n.

    One run is an n-gram of 3. Three are three single tokens: the last one is always, since a longer
    n-gram is shortened. All else is two. Runs are side by side by chance in 1 % of the sequences.
    """
    one, _, three = np.array([1, 1 / 2, 1 / 3]) / (1 + 1 / 2 + 1 / 3)
    if not favor_shorter:
        one, three = three, one
    masking = BASE.with_options(
        masked_lm_prob=1.0,
        max_predictions_per_seq=3,
        ngram=3,
        favor_shorter_ngram=favor_shorter,
    )
    draws = 5000
    ids = np.full((draws, 600), 9)
    keys = example_keys(3, np.arange(draws))
    masked = mask_batch(ids, np.full(draws, 600), keys=keys, settings=masking)
    assert (masked.weights == 1).all()
    runs = 1 + (np.diff(masked.positions, axis=1) > 1).sum(axis=1)
    found = np.bincount(runs, minlength=4)[1:] / draws
    expected = [three, 1 - three - one**2, one**2]
    assert np.abs(found - expected).max() < 0.03  # 3 standard deviations, and the neighbours


def test_ngrams_leave_masks_without_them_as_they_are():
    """Literal: masks that are drawn again are the same."""
    ids = np.arange(5, 45)[None]
    masking = BASE.with_options(ngram=1, favor_shorter_ngram=False)
    found = mask_batch(ids, np.array([40]), keys=example_keys(5, 7), settings=masking)
    same = mask_batch(ids, np.array([40]), keys=example_keys(5, 7), settings=BASE)
    assert (
        found.positions[0, :6].tolist() == same.positions[0, :6].tolist() == [1, 5, 13, 20, 22, 33]
    )


def test_whole_words_need_their_starts():
    with pytest.raises(ValueError, match="word_starts"):
        mask_batch(
            np.ones((1, 3), int),
            np.array([3]),
            keys=example_keys(1, 0),
            settings=BASE.with_options(do_whole_word_mask=True),
        )


def test_the_share_of_masked_tokens_changes_in_a_straight_line():
    shares = MaskShares(0.3, 0.15, positions=31)
    assert shares.at(0) == pytest.approx(0.3)
    assert shares.at(10) == pytest.approx(0.25)
    assert shares.at(30) == shares.at(1000) == pytest.approx(0.15)
    assert MaskShares(0.3, 0.15, positions=31, offset=10).at(0) == shares.at(10)
    assert MaskShares(0.2, 0.4, positions=1).at(0) == 0.2


@pytest.mark.parametrize(("first", "last"), [(0.3, 0.15), (0.15, 0.3), (0.2, 0.2)])
def test_predictions_follow_the_share(first, last):
    shares = MaskShares(first, last, positions=11)
    masking = BASE.with_options(max_predictions_per_seq=20)
    most = [shares.settings_at(p, masking).options.max_predictions_per_seq for p in range(11)]
    largest = max(first, last)
    assert most[0] == (20 if first == largest else 10)
    assert most[-1] == (20 if last == largest else 10)
    assert most == sorted(most, reverse=first > last)
    assert shares.settings_at(5, masking).options.masked_lm_prob == pytest.approx(
        (first + last) / 2
    )
