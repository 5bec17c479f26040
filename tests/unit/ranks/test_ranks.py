"""The facade of ranks on one process; tests/parallel/test_ranks.py has it on two."""

import os
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.ranks.connect import connect
from bert_tf.ranks.horovod import HorovodRanks
from bert_tf.ranks.ranks import (
    Part,
    Ranks,
    SingleProcess,
    part_of,
    threads_per_rank,
)
from bert_tf.util.errors import UserError

LAUNCHER_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "HOROVOD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_single_process_is_rank_0_of_1():
    ranks = SingleProcess()
    assert (ranks.rank, ranks.local_rank, ranks.world_size, ranks.local_size) == (0, 0, 1, 1)
    assert ranks.is_chief
    assert not LikeHorovod().is_chief
    assert ranks.broadcast_hooks() == []
    value = {"a": [1]}
    assert ranks.gather(value) == [value]
    assert ranks.broadcast(value) == value


def test_sums_of_a_single_process_are_its_own():
    ranks = SingleProcess()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tensor = tf.constant([1.0, -2.0])
        total = ranks.sum_over_ranks(tensor, name="total")
        assert graph.get_tensor_by_name("total:0") is total
        gradients = ranks.sum_gradients((tensor, 3.0 * tensor), variables=())
        assert isinstance(gradients, list)
        total, (first, second) = session.run([total, gradients])
    np.testing.assert_array_equal(total, [1, -2])
    np.testing.assert_array_equal(first, [1, -2])
    np.testing.assert_array_equal(second, [3, -6])


class LikeHorovod(SingleProcess):
    rank, local_rank, world_size, local_size = 5, 1, 8, 4


@pytest.mark.parametrize(
    ("cores", "local_size", "expected"),
    [(8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 8, 1), (2, 4, 1)],
)
def test_ranks_share_the_cores_of_their_host(monkeypatch, cores, local_size, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert threads_per_rank(local_size) == expected


@pytest.mark.parametrize(("cores", "expected"), [(6, 3), (None, 1)])
def test_cores_where_the_system_has_no_affinity(monkeypatch, cores, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert threads_per_rank(2) == expected


def test_threads_of_a_rank_unless_they_are_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert SingleProcess().threads == 8
    assert LikeHorovod().threads == 2
    assert LikeHorovod(num_threads=3).threads == 3
    assert connect(None, num_threads=5).threads == 5


def test_several_processes_without_horovod_are_refused(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    assert type(connect(None)) is SingleProcess
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UserError, match=r"^4 processes .* add --horovod\.$"):
        connect(None)


def test_horovod_that_is_not_installed_is_one_sentence(monkeypatch):
    # None in sys.modules makes the import fail as that of a missing module does.
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    monkeypatch.setenv("PMI_SIZE", "1")
    with pytest.raises(UserError, match=r"--horovod: Horovod cannot be imported .*'make setup'"):
        connect("horovod")


def test_horovod_without_a_launcher_is_one_rank():
    assert type(connect("horovod")) is SingleProcess


def test_exchanging_values_leaves_the_gpus_to_later_sessions():
    ranks = HorovodRanks.__new__(HorovodRanks)
    ranks.threads = 1
    ranks._hvd = types.SimpleNamespace(allgather_object=lambda value, session, name: session)
    config = ranks.gather("value")._config
    assert dict(config.device_count) == {"GPU": 0}
    assert config.intra_op_parallelism_threads == 1


def test_variables_are_broadcast_in_each_new_session():
    """With what every Horovod has: its own hook is missing beside newer TensorFlows."""
    ranks = HorovodRanks.__new__(HorovodRanks)
    ranks._hvd = types.SimpleNamespace(
        broadcast_variables=lambda variables, root: [v.assign(root + 7) for v in variables]
    )
    with tf.Graph().as_default():
        variables = [tf.get_variable(name, initializer=1) for name in "ab"]
        # One that is only read is in no checkpoint, and rank 0 alone has its weights all the same.
        only_read = [tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES]
        variables.append(tf.get_variable("c", initializer=1, collections=only_read))
        own = tf.get_variable("d", initializer=1, collections=[tf.GraphKeys.LOCAL_VARIABLES])
        [hook] = ranks.broadcast_hooks()
        for _ in range(2):
            with tf.train.MonitoredSession(hooks=[hook]) as session:
                assert session.run(variables) == [7, 7, 7]
                assert session.run(own) == 1


def test_both_kinds_of_ranks_have_the_same_methods():
    for name in {*vars(HorovodRanks), *vars(SingleProcess)}:
        if not name.startswith("_"):
            assert hasattr(Ranks, name), name


@pytest.mark.parametrize(
    ("rank", "local_rank", "events"),
    [
        (0, 0, ["act", "meet", "meet"]),
        (4, 0, ["meet", "act", "meet"]),
        (1, 1, ["meet", "meet"]),
        (5, 1, ["meet", "meet"]),
    ],
)
def test_rank_0_acts_first_then_one_rank_of_each_other_host(rank, local_rank, events):
    found = []

    class Rank(SingleProcess):
        def gather(self, value):
            found.append("meet")
            return [value]

    ranks = Rank(1)
    ranks.rank, ranks.local_rank = rank, local_rank
    ranks.once_on_each_host(lambda: found.append("act"))
    assert found == events


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
