"""Batches by length: complete, repeatable, the same for every number of ranks, little padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.input.length_buckets import (
    LengthBuckets,
    LengthSortedBatches,
    ShuffledBatches,
    padded_length,
)
from bert_tf.input.order import GlobalBatchSlice, epoch_permutation

LONGEST = 384


def lengths_of(count, seed=0):
    return np.random.default_rng(seed).integers(20, LONGEST + 1, count)


def buckets(lengths, batch_size, seed=5):
    return LengthBuckets(lengths, global_batch_size=batch_size, seed=seed, max_length=LONGEST)


def global_batch(order, position, batch_size):
    return order.indices(position, GlobalBatchSlice(batch_size))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(1, 4))
def test_whole_epochs_have_every_record_equally_often(count, batch_size, epochs):
    order = buckets(lengths_of(count), batch_size)
    batches = -(-count * epochs // batch_size)
    seen = np.concatenate([global_batch(order, p, batch_size) for p in range(batches)])
    times = np.bincount(seen, minlength=count)
    # What is over is less than a batch, which belongs to the next epoch.
    assert len(seen) - count * epochs < batch_size
    assert times.sum() == len(seen)
    assert (times < epochs).sum() <= batch_size - 1
    if count * epochs % batch_size == 0:
        assert set(times) == {epochs}


def test_the_order_depends_on_nothing_but_seed_and_position():
    lengths = lengths_of(500)
    order, again = buckets(lengths, 16), buckets(lengths, 16)
    positions = [90, 3, 0, 61, 3]
    for position in positions:
        np.testing.assert_array_equal(
            global_batch(order, position, 16), global_batch(again, position, 16)
        )
    other = buckets(lengths, 16, seed=6)
    assert any(
        not np.array_equal(global_batch(order, p, 16), global_batch(other, p, 16)) for p in range(4)
    )


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_global_batch_and_its_length(world_size):
    lengths = lengths_of(300)
    order = buckets(lengths, 16)
    for position in (0, 7, 40):
        parts = [
            order.indices(position, GlobalBatchSlice(16, rank, world_size))
            for rank in range(world_size)
        ]
        whole = global_batch(order, position, 16)
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert order.padded_length(position) >= lengths[whole].max()


def test_batches_hold_like_lengths_in_no_order_of_length():
    lengths = lengths_of(4000)
    order = buckets(lengths, 32)
    padded = np.array([order.padded_length(p) for p in range(125)])
    tokens = sum(lengths[global_batch(order, p, 32)].sum() for p in range(125))
    assert tokens / (padded.sum() * 32) > 0.85  # 0.53 when every batch is padded to 384
    # Neighbours are no longer or shorter than any others.
    assert abs(np.corrcoef(padded[:-1], padded[1:])[0, 1]) < 0.3
    # A pool is a part of the epoch: the batches of one length are spread over all of it.
    assert padded[:30].max() - padded[:30].min() > 200


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 900), st.integers(1, 24))
def test_typical_lengths_of_few_records_are_those_of_the_first_epoch(count, batch_size):
    order = buckets(lengths_of(count), batch_size)
    batches = -(-count // batch_size)
    expected = [order.padded_length(position) for position in range(batches)]
    found = order.typical_lengths()
    assert sorted(found) == sorted(expected)


def test_typical_lengths_of_many_records_are_a_sample():
    order = buckets(lengths_of(40_000), 8)
    whole = order.typical_lengths()
    assert len(whole) == 5000
    sample = order.typical_lengths(most_sampled=8 * 32 * 10)
    assert 300 < len(sample) < 340
    assert np.mean(sample) == pytest.approx(np.mean(whole), rel=0.03)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_random_batches_are_padded_to_the_longest_on_any_rank(world_size):
    lengths, batch_size, origin = lengths_of(37), 4, 6
    order = ShuffledBatches(
        lengths, global_batch_size=batch_size, seed=5, max_length=LONGEST, origin=origin
    )
    endless = np.concatenate([epoch_permutation(5, epoch, 37) for epoch in range(3)])
    for position in range(20):
        parts = [
            order.indices(position, GlobalBatchSlice(batch_size, rank, world_size, origin))
            for rank in range(world_size)
        ]
        whole = endless[origin + position * batch_size :][:batch_size]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        longest = lengths[whole].max()
        assert order.padded_length(position) == padded_length(longest, max_length=LONGEST)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 17), st.integers(1, 4))
def test_prediction_has_every_record_once(count, batch_size, world_size):
    lengths = lengths_of(count)
    found, numbers = [], set()
    for rank in range(world_size):
        batches = LengthSortedBatches(
            lengths, batch_size=batch_size, max_length=LONGEST, rank=rank, world_size=world_size
        )
        numbers.add(batches.num_batches)
        for number in range(batches.num_batches):
            indices = batches.indices(number)
            assert len(indices) == batch_size
            assert batches.padded_length(number) >= lengths[indices].max()
            found.extend(indices[batches.is_record(number)])
    assert len(numbers) == 1
    assert sorted(found) == list(range(count))


def test_prediction_begins_with_the_longest():
    lengths = lengths_of(100)
    batches = LengthSortedBatches(lengths, batch_size=8, max_length=LONGEST, rank=0, world_size=1)
    assert lengths[batches.indices(0)].min() >= lengths[batches.indices(1)].max()


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 8), (8, 8), (17, 24), (64, 64), (65, 80), (383, 384), (384, 384)]
)
def test_padded_length(length, expected):
    assert padded_length(length, max_length=LONGEST) == expected


def test_no_more_than_the_records_have():
    assert padded_length(90, max_length=90) == 90
