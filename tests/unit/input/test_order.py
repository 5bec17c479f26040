from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.config.ramps import Ramp
from bert_tf.input import order


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
    num_records=st.one_of(st.integers(1, 3000), st.integers(8190, 40_000)),
)
def test_an_epoch_is_a_permutation(seed, epoch, num_records):
    permutation = order.epoch_permutation(seed, epoch, num_records)
    assert permutation.dtype == np.int64
    assert sorted(permutation.tolist()) == list(range(num_records))


@pytest.mark.parametrize("num_records", [255, 8192, 8193, 16_384, 20_000])
def test_a_stretch_is_a_part_of_the_whole(num_records):
    whole = order.epoch_permutation(5, 2, num_records)
    part = order.epoch_permutation(5, 2, num_records, start=37, stop=201)
    np.testing.assert_array_equal(part, whole[37:201])


def test_a_large_epoch_needs_no_large_memory():
    part = order.epoch_permutation(1, 0, 10**12, start=10**12 - 1000)
    assert len(np.unique(part)) == 1000
    assert 0 <= part.min() < part.max() < 10**12
    assert abs(part.mean() / 10**12 - 0.5) < 0.05  # standard error 0.009


def test_every_record_is_equally_likely_at_every_place():
    """Chi-square over 4,000 epochs of 7 records; 1e-4 quantile of 36 degrees of freedom: 80."""
    counts = np.zeros((7, 7))
    for epoch in range(4000):
        counts[np.arange(7), order.epoch_permutation(3, epoch, 7)] += 1
    expected = 4000 / 7
    assert ((counts - expected) ** 2 / expected).sum() < 80


def test_all_orders_of_four_occur():
    """Chi-square over the 24 orders; 1e-4 quantile of 23 degrees of freedom: 60."""
    seen: dict = {}
    for seed in range(2400):
        key = tuple(order.epoch_permutation(seed, 0, 4).tolist())
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 24
    assert sum((count - 100) ** 2 / 100 for count in seen.values()) < 60


def test_places_are_evenly_filled_in_large_epochs():
    """Chi-square of 16 parts of the records against 16 parts of the epoch, 225 degrees."""
    n = 16_000
    counts = np.zeros((16, 16))
    for epoch in range(4):
        places = np.arange(n) // 1000
        np.add.at(counts, (places, order.epoch_permutation(11, epoch, n) // 1000), 1)
    assert ((counts - 250) ** 2 / 250).sum() < 225 + 4 * np.sqrt(2 * 225)


def test_neighbours_and_epochs_and_seeds_are_unrelated():
    n = 20_000
    first = order.epoch_permutation(1, 0, n)
    for other in (
        order.epoch_permutation(1, 1, n),
        order.epoch_permutation(2, 0, n),
        np.roll(first, 1),
        np.arange(n),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.05  # standard deviation 0.007
        assert (first == other).sum() < 10  # expected: 1


@settings(max_examples=50, deadline=None)
@given(
    num_records=st.integers(1, 60),
    batch=st.integers(1, 100),
    position=st.integers(0, 50),
)
def test_batches_are_the_endless_sequence_of_epochs(num_records, batch, position):
    epochs = range((position + 1) * batch // num_records + 1)
    sequence = np.concatenate([order.epoch_permutation(9, e, num_records) for e in epochs])
    whole = order.GlobalBatchSlice(batch)
    actual = order.batch_indices(position, whole, num_records=num_records, seed=9)
    np.testing.assert_array_equal(actual, sequence[position * batch : (position + 1) * batch])


def test_batches_across_the_borders_of_chunks():
    n = 20_000
    whole = np.concatenate([order.epoch_permutation(4, epoch, n) for epoch in (0, 1)])
    for start in (0, 8000, 16_000, 19_990):
        actual = order.sequence_indices(start, 10_000, num_records=n, seed=4)
        np.testing.assert_array_equal(actual, whole[start : start + 10_000])


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_rank_slices_make_up_the_global_batch(world_size):
    indices = order.batch_indices(3, order.GlobalBatchSlice(12), num_records=100, seed=1)
    slices = [order.GlobalBatchSlice(12, rank, world_size) for rank in range(world_size)]
    parts = [order.batch_indices(3, part, num_records=100, seed=1) for part in slices]
    assert {len(part) for part in parts} == {12 // world_size}
    np.testing.assert_array_equal(np.concatenate(parts), indices)


def test_another_batch_size_goes_on_where_the_data_stopped():
    """Four updates of 12, then updates of 9: the same endless sequence."""
    whole = order.sequence_indices(0, 48 + 27, num_records=100, seed=1)
    batch = order.GlobalBatchSlice(9, origin=48 - 4 * 9)
    after = [order.batch_indices(p, batch, num_records=100, seed=1) for p in (4, 5, 6)]
    np.testing.assert_array_equal(np.concatenate(after), whole[48:])


@pytest.mark.parametrize("world_size", [1, 2])
def test_growing_batches_are_the_same_sequence_on_any_ranks(world_size):
    sizes = Ramp((4, 8, 12), (2, 3))
    whole = order.sequence_indices(0, 4 + 4 + 8 + 12 + 12, num_records=25, seed=1)
    slices = [
        order.GlobalBatchSlice(12, rank, world_size, sizes=sizes) for rank in range(world_size)
    ]
    found = []
    for position, size in enumerate([4, 4, 8, 12, 12]):
        parts = [order.batch_indices(position, s, num_records=25, seed=1) for s in slices]
        assert {len(part) for part in parts} == {size // world_size}
        assert [s.at(position).start for s in slices] == [
            rank * size // world_size for rank in range(world_size)
        ]
        found += parts
    np.testing.assert_array_equal(np.concatenate(found), whole)
    assert {s.constant_size for s in slices} == {None}
    # A run that consumed 9 sequences in other updates goes on there.
    moved = order.GlobalBatchSlice(12, sizes=sizes, origin=9 - 8)
    np.testing.assert_array_equal(
        order.batch_indices(2, moved, num_records=25, seed=1), whole[9:17]
    )


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match="10 cannot be divided among 4 ranks"):
        order.GlobalBatchSlice(10, 0, 4)
    with pytest.raises(ValueError, match="6 cannot be divided among 4 ranks"):
        order.GlobalBatchSlice(8, 0, 4, sizes=Ramp((6, 8), (1,)))
    with pytest.raises(ValueError, match="rank 4 of 4"):
        order.GlobalBatchSlice(8, 4, 4)
    assert (order.GlobalBatchSlice(8, 3, 4).size, order.GlobalBatchSlice(8, 3, 4).start) == (2, 6)


def test_no_records_are_refused():
    with pytest.raises(ValueError, match="no records"):
        order.batch_indices(0, order.GlobalBatchSlice(1), num_records=0, seed=1)
