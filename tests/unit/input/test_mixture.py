"""Sequences from several sources, counted one at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.config.ramps import Ramp
from bert_tf.input.length_buckets import LengthBuckets
from bert_tf.input.mixture import Mixture, Source, files_of_sources, weighted_sources
from bert_tf.input.order import GlobalBatchSlice, sequence_indices
from bert_tf.util.errors import UserError


@st.composite
def mixtures(draw):
    """Two to five sources of 1 to 30 records, with weights in multiples of 1/N, N up to 60."""
    parts = draw(st.lists(st.integers(1, 12), min_size=2, max_size=5))
    weights = [Fraction(part, sum(parts)) for part in parts]
    sizes = draw(st.lists(st.integers(1, 30), min_size=len(parts), max_size=len(parts)).map(tuple))
    sources = tuple(Source(f"source {n}", weight) for n, weight in enumerate(weights))
    return Mixture(sources, sizes, seed=draw(st.integers(0, 2**40)))


def sources_of(mixture, records):
    """The number of the source of each record."""
    return np.searchsorted(np.cumsum(mixture.sizes), records, side="right")


@settings(max_examples=80, deadline=None)
@given(mixture=mixtures(), start=st.integers(0, 2000), count=st.integers(1, 300))
def test_every_prefix_has_its_fractions_to_less_than_a_sequence(mixture, start, count):
    found = sources_of(mixture, mixture.sequence(0, start + count))
    numbers = np.arange(1, start + count + 1)
    for number, source in enumerate(mixture.sources):
        exact = numbers * float(source.weight)
        assert abs(np.cumsum(found == number) - exact).max() < 1
    counts = [int((found == number).sum()) for number in range(len(mixture.sizes))]
    assert mixture.counts(start + count) == counts
    np.testing.assert_array_equal(
        mixture.sequence(start, count), mixture.sequence(0, start + count)[start:]
    )


@settings(max_examples=60, deadline=None)
@given(mixture=mixtures(), periods=st.integers(1, 3), ranks=st.integers(1, 4), data=st.data())
def test_global_batches_of_whole_periods_have_the_fractions(mixture, periods, ranks, data):
    period = np.lcm.reduce([source.weight.denominator for source in mixture.sources])
    size = int(period) * periods * ranks
    position = data.draw(st.integers(0, 50))
    parts = [
        mixture.indices(position, GlobalBatchSlice(size, rank, ranks)) for rank in range(ranks)
    ]
    found = sources_of(mixture, np.concatenate(parts))
    for number, source in enumerate(mixture.sources):
        assert (found == number).sum() == size * source.weight


@settings(max_examples=60, deadline=None)
@given(mixture=mixtures(), data=st.data())
def test_ranks_and_resumed_runs_have_the_same_sequence(mixture, data):
    """A run that stops at some update, and resumes with other ranks and another global batch."""
    before, after = (data.draw(st.integers(1, 4)) for _ in range(2))
    first, second = (n * data.draw(st.integers(1, 8)) for n in (before, after))
    stop, updates = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 5))
    found = []
    for position in range(stop):
        for rank in range(before):
            found.append(mixture.indices(position, GlobalBatchSlice(first, rank, before)))
    # Positions continue, and the origin makes up for the size of the earlier batches.
    origin = stop * first - stop * second
    for position in range(stop, stop + updates):
        for rank in range(after):
            part = GlobalBatchSlice(second, rank, after, origin=origin)
            found.append(mixture.indices(position, part))
    whole = mixture.sequence(0, stop * first + updates * second)
    np.testing.assert_array_equal(np.concatenate(found), whole)


@settings(max_examples=40, deadline=None)
@given(mixture=mixtures())
def test_each_source_is_read_epoch_after_epoch(mixture):
    found = mixture.sequence(0, 400)
    sources = sources_of(mixture, found)
    start = 0
    for number, size in enumerate(mixture.sizes):
        own = found[sources == number]
        for epoch in range(len(own) // size):
            records = own[epoch * size : (epoch + 1) * size]
            assert sorted(records.tolist()) == list(range(start, start + size))
        start += size


def test_the_first_source_has_the_order_of_a_run_on_it_alone():
    halves = tuple(Source(name, Fraction(1, 2)) for name in "ab")
    mixture = Mixture(halves, (50, 50), seed=7)
    found = mixture.sequence(0, 200)
    alone = sequence_indices(0, 100, num_records=50, seed=7)
    first, second = found[found < 50], found[found >= 50] - 50
    np.testing.assert_array_equal(first, alone)
    assert (second == alone).sum() < 15  # expected: 2


def test_a_single_source_is_the_plain_order():
    mixture = Mixture((Source("a", Fraction(1)),), (20,), seed=3)
    plain = sequence_indices(5, 60, num_records=20, seed=3)
    np.testing.assert_array_equal(mixture.sequence(5, 60), plain)


def test_a_growing_batch_has_the_sequence_too():
    halves = (Source("a", Fraction(3, 4)), Source("b", Fraction(1, 4)))
    mixture = Mixture(halves, (9, 4), seed=2)
    sizes = Ramp((2, 4), (3,))
    found = [
        mixture.indices(position, GlobalBatchSlice(4, rank, 2, sizes=sizes))
        for position in range(6)
        for rank in range(2)
    ]
    np.testing.assert_array_equal(np.concatenate(found), mixture.sequence(0, 3 * 2 + 3 * 4))


def test_batches_of_similar_length_have_the_fractions_in_every_pool():
    halves = (Source("a", Fraction(4, 5)), Source("b", Fraction(1, 5)))
    mixture = Mixture(halves, (300, 900), seed=2)
    lengths = np.random.default_rng(1).integers(4, 64, 1200)
    buckets = LengthBuckets(
        lengths, global_batch_size=10, seed=2, max_length=64, sequence=mixture.sequence
    )
    batch = GlobalBatchSlice(10)
    # 1,200 records are 120 batches, in four pools of 30.
    found = [buckets.indices(position, batch) for position in range(240)]
    for pool in range(8):
        records = np.concatenate(found[pool * 30 : (pool + 1) * 30])
        assert sorted(records) == sorted(mixture.sequence(pool * 300, 300))
        assert (sources_of(mixture, records) == 0).sum() == 240


def test_an_epoch_is_a_pass_over_the_first_source():
    mixture = Mixture((Source("a", Fraction(4, 5)), Source("b", Fraction(1, 5))), (10, 99), seed=1)
    assert mixture.epoch == 13
    assert mixture.counts(13)[0] == 10
    assert mixture.ledger_sections(26) == {
        "source_1": {
            "files": "a", "fraction": 0.8, "records": 10, "sequences": 21, "epochs": 2.1
        },
        "source_2": {
            "files": "b", "fraction": 0.2, "records": 99, "sequences": 5, "epochs": 0.051
        },
    }  # fmt: skip


def weights_of(patterns):
    return [(s.pattern, s.weight) for s in weighted_sources(patterns, flag="input_file")]


def test_weights_are_exact_decimal_fractions(tmp_path):
    assert weights_of("a:0.8,b*:.2") == [("a", Fraction(4, 5)), ("b*", Fraction(1, 5))]
    assert weights_of("a:1") == [("a", 1)]
    assert weights_of("a:0.3333, b:0.3333 ,c:0.3334")[2] == ("c", Fraction(3334, 10_000))
    assert weights_of("a,b") == []
    assert weights_of("gs://a,b:c") == []


def test_the_name_of_a_file_wins(tmp_path):
    for name in ("a:0.8", "b"):
        (tmp_path / name).write_text("x")
    assert weights_of(f"{tmp_path}/a:0.8") == []
    assert weights_of(f"{tmp_path}/?:0.8") == [], "a glob that matches"
    assert weights_of(f"{tmp_path}/a:0.8:1") == [(f"{tmp_path}/a:0.8", 1)]
    assert files_of_sources(f"{tmp_path}/a:0.8,{tmp_path}/b", flag="input_file") == [
        tmp_path / "a:0.8", tmp_path / "b"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ("a:0.8,b", ["'b' has no weight", "'a:0.8' has one", "or none"]),
        ("a:0.8,b:0.1", ["0.8 + 0.1 add up to 0.9", "add up to 1"]),
        ("a:4,b:1", ["4 + 1 add up to 5"]),
        ("a:1,b:0", ["above 0"]),
        ("a:0.33333,b:0.66667", ["more than 4 digits"]),
    ],
)
def test_other_weights_are_refused(patterns, words):
    with pytest.raises(UserError) as error:
        weighted_sources(patterns, flag="input_file")
    for word in ["--input_file", *words]:
        assert word in str(error.value)


def test_a_file_of_two_sources_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    with pytest.raises(UserError, match=r"a is in two sources, .*/a and .*/\*; name it in one"):
        files_of_sources(f"{tmp_path}/a:0.5,{tmp_path}/*:0.5", flag="input_file")
