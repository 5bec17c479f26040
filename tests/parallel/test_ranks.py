"""The facade of ranks on real processes, against closed forms of rank and size."""

import json
import os
import socket

import numpy as np
import pytest

from bert_tf.ranks.ranks import threads_per_rank
from tests.helpers.programs import mpirun, requires_horovod

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.each_tensorflow]

PROGRAM = "tests/parallel/ranks_program.py"
SIZE = 2
ACTIONS = ("exchange", "communicate")


@pytest.fixture(scope="module")
def printed():
    """What each rank exchanged, and gradients combined under each setting: of one launch."""
    return list(map(json.loads, mpirun(SIZE, PROGRAM, *ACTIONS).stdout.splitlines()[-2:]))


@pytest.fixture(scope="module")
def found(printed):
    """What each rank found, in the order of ranks."""
    return printed[ACTIONS.index("exchange")]


def test_who_is_who(found):
    assert [f["type"] for f in found] == ["HorovodRanks"] * SIZE
    assert [f["rank"] for f in found] == [0, 1]
    assert [f["local_rank"] for f in found] == [0, 1]
    assert [f["is_chief"] for f in found] == [True, False]
    for f in found:
        assert f["sizes"] == [SIZE, SIZE]
        assert f["threads"] == threads_per_rank(SIZE) == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize("given", [None, pytest.param("0", marks=pytest.mark.slow)])
def test_a_rank_that_waits_leaves_the_core_to_others(found, monkeypatch, given):
    if given is not None:
        monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", given)
        found = json.loads(mpirun(SIZE, PROGRAM, "exchange").stdout.splitlines()[-1])
    assert [f["yields"] for f in found] == [given is None] * SIZE


def test_gather_and_broadcast(found):
    for f in found:
        assert f["gathered"] == [{"text": "x"}, {"text": "x" * 101}]
        assert f["gathered_again"] == [0, 1]
        assert f["broadcast"] == "from 0"


def test_sums_over_ranks(found):
    for f in found:
        assert f["single"] == [SIZE, SIZE * (SIZE - 1) / 2]
        assert f["double"] == SIZE * 2.0**40 + SIZE * (SIZE - 1) / 2


def test_vectors_of_different_lengths_are_concatenated(found):
    expected = [rank + 2.0**-7 for rank in range(len(found)) for _ in range(2 * rank)]
    for values in found:
        assert values["concatenated"] == [expected, expected]


def test_sums_of_gradients(found):
    for f in found:
        scalar, table = f["gradients"]
        assert scalar == SIZE * (SIZE + 1) / 2
        assert table == [[2, 2], [2, 2], [0, 0]]


def test_variables_start_as_those_of_rank_0(found):
    assert [f["variable"] for f in found] == [10.0] * SIZE
    assert [f["step"] for f in found] == [0] * SIZE  # each session was restored at its own rank


@pytest.fixture(scope="module")
def combined(printed):
    """Gradients combined under each setting, as rank 0 found them."""
    return printed[ACTIONS.index("communicate")]


# What the two ranks bring: see communicate() in the program.
GRADIENTS = [np.array([[1.0, 0.1], [2.0, 0.1]]), np.array([[3.0, 1e-3, 7.0], [-1.0, 1e-3, 7.0]])]


def test_gradients_are_added_in_float32_whatever_the_groups(combined):
    for name in ("plain", "groups"):
        for found, own in zip(combined[name], GRADIENTS):
            np.testing.assert_array_equal(found, own.astype(np.float32).sum(axis=0))


def test_compressed_gradients_are_added_in_float16(combined):
    for found, own in zip(combined["fp16"], GRADIENTS):
        np.testing.assert_array_equal(found, own.astype(np.float16).sum(axis=0))
    assert combined["fp16"] != combined["plain"]


ROWS, TABLE = ["HorovodAllgather"], ["HorovodAllreduce"]


@pytest.mark.parametrize(
    ("case", "width", "types"),
    [
        ("as a table", 128, TABLE),
        ("as rows", 2, ROWS),
        ("small", 2, TABLE),
        ("large", 128, ROWS),
        ("large, complete at once", 128, ["HorovodGroupedAllreduce"]),
        ("large, number unknown", 128, TABLE),
        ("large, number limited", 128, ROWS),
    ],
)
def test_a_looked_up_table_travels_as_table_or_rows(combined, case, width, types):
    found = combined["looked up"][case]
    # Rank r looks up row r once and row 3 twice, with a factor of r + 1.
    assert found["first"] == [[1, 1], [2, 2], [0, 0], [6, 6], [0, 0]]
    assert found["sum"] == 9 * width
    assert found["types"] == types


def test_adasum_against_its_formula(combined):
    # Maleki et al. 2020, section 3.2, on the ranks' own gradients: their shares times the ranks.
    for found, own in zip(combined["adasum"], GRADIENTS):
        a, b = SIZE * own
        expected = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_mismatch_ends_every_rank_with_one_sentence():
    done = mpirun(SIZE, PROGRAM, "mismatch", check=False)
    assert done.returncode != 0
    sentence = (
        f"rank 1 on host {socket.gethostname()} differs from rank 0 in training data (xyz instead "
        "of abc); give every rank the same."
    )
    assert json.loads(done.stdout.splitlines()[0]) == [sentence] * SIZE
    assert f"error: {sentence}" in done.stderr
    assert "Traceback" not in done.stderr
