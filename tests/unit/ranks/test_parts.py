"""Parts of ranks: every element once, and in the places where Horovod cuts (tests/parallel)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.ranks.ranks import Part, part_of

WORLD_SIZES = st.integers(1, 70)


@given(size=st.integers(0, 2000), world_size=WORLD_SIZES)
def test_parts_have_every_element_once_and_in_order(size, world_size):
    parts = [part_of(size, rank, world_size) for rank in range(world_size)]
    elements = [element for part in parts for element in range(part.start, part.end)]
    assert elements == list(range(size))
    sizes = [part.size for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("size", "world_size", "expected"),
    [
        (7, 3, [Part(0, 3), Part(3, 2), Part(5, 2)]),
        (2, 4, [Part(0, 1), Part(1, 1), Part(2, 0), Part(2, 0)]),
        (5, 1, [Part(0, 5)]),
    ],
)
def test_parts_by_hand(size, world_size, expected):
    assert [part_of(size, rank, world_size) for rank in range(world_size)] == expected
