"""Ramps at every position against sums over single positions."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.config.ramps import Ramp
from bert_tf.update.batch_plan import BatchPlan, Segment

RAMP = Ramp((2, 4, 6), (3, 7))


@st.composite
def ramps(draw):
    joins = draw(st.lists(st.integers(0, 30), max_size=4).map(sorted))
    values = draw(st.lists(st.integers(1, 9), min_size=len(joins) + 1, max_size=len(joins) + 1))
    return Ramp(tuple(values), tuple(joins))


def by_cases(ramp, position):
    """The value of the last stage that has begun."""
    return ramp.values[sum(join <= position for join in ramp.joins)]


@pytest.mark.parametrize(
    ("position", "value", "before"),
    [(0, 2, 0), (2, 2, 4), (3, 4, 6), (4, 4, 10), (6, 4, 18), (7, 6, 22), (8, 6, 28), (99, 6, 574)],
)
def test_values_and_sums_around_the_joins(position, value, before):
    assert RAMP.at(position) == value
    assert RAMP.total(0, position) == before
    assert type(RAMP.at(position)) is int


@given(ramp=ramps(), begin=st.integers(0, 40), length=st.integers(0, 40), shift=st.integers(-9, 9))
def test_sums_are_those_of_single_positions(ramp, begin, length, shift):
    positions = range(begin, begin + length)
    single = [by_cases(ramp, position) for position in positions]
    assert [ramp.at(position) for position in positions] == single
    assert ramp.total(begin, begin + length) == sum(single)
    shifted = ramp.shifted(shift)
    assert [shifted.at(p) for p in positions] == [by_cases(ramp, p + shift) for p in positions]
    assert shifted.total(begin, begin + length) == sum(by_cases(ramp, p + shift) for p in positions)


@given(ramp=ramps(), total=st.integers(0, 300))
def test_the_position_of_a_sum(ramp, total):
    position = ramp.position_of(total)
    assert ramp.total(0, position) <= total < ramp.total(0, position + 1)


def test_stages_as_text():
    assert str(RAMP) == "2:0,4:3,6:7"
    many = Ramp(tuple(range(1, 51)), tuple(range(10, 500, 10)))
    assert str(many) == "1:0,2:10,3:20,...,50:490 (50 stages)"
    with pytest.raises(ValueError, match="cannot be joined"):
        Ramp((1, 2, 3), (7, 3))


PLAN = BatchPlan(2, 3, 1, sizes=RAMP, lengths=Ramp((8, 12), (5,)))


def test_the_segments_of_a_plan():
    expected = [Segment(2, 2, 8), Segment(2, 4, 8), Segment(2, 4, 12), Segment(13, 6, 12)]
    assert list(PLAN.segments(1, 20)) == expected
    assert PLAN.sequences(1, 20) == sum(part.sequences for part in expected) == 4 + 8 + 8 + 78
    assert PLAN.work(1, 20) == 12 * 8 + 86 * 12
    assert list(PLAN.segments(4, 4)) == []
    assert list(PLAN.at_full_size().segments(1, 20)) == [Segment(19, 6, None)]
    # Positions in the data begin later than those in the ramps.
    moved = dataclasses.replace(PLAN, offset=5)
    assert list(moved.segments(0, 3)) == [Segment(2, 4, 12), Segment(1, 6, 12)]
    assert (moved.global_batch_at(1), moved.global_batch_at(2), moved.length_at(0)) == (4, 6, 12)


@given(ramp=ramps(), sequences=st.integers(1, 400))
def test_positions_of_sums(ramp, sequences):
    positions = ramp.length_of(sequences - 0.5)
    assert ramp.total(0, positions - 1) < sequences <= ramp.total(0, positions)
    nearest = ramp.nearest_position(sequences)
    distances = [abs(ramp.total(0, n) - sequences) for n in range(nearest + 30)]
    assert distances[nearest] == min(distances)
