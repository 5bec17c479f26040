"""Closed forms of collective operations, and the bytes counted by acting them out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.communication import model
from benchmarks.communication.model import Cluster, Link

LINK = Link(bytes_per_second=100.0, latency_seconds=0.5)


def acted_out_ring(ranks, num_bytes, link):
    """Sends the parts round in turn, and adds them up; returns the seconds and the ranks' sums."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    seconds = 0.0
    for step in range(2 * (ranks - 1)):
        seconds += link.latency_seconds + num_bytes / ranks / link.bytes_per_second
        sent = []
        for rank in range(ranks):
            part = (rank - step) % ranks
            sent.append((rank, part, held[rank][part]))
        for rank, part, content in sent:
            held[(rank + 1) % ranks][part] = held[(rank + 1) % ranks][part] | content
    return seconds, held


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_a_ring_takes_as_long_as_its_steps(ranks):
    seconds, held = acted_out_ring(ranks, 600.0, LINK)
    everyone = set(range(ranks))
    assert all(part == everyone for parts in held for part in parts), "the reference adds up all"
    assert model.ring_allreduce_seconds(600.0, ranks, LINK) == pytest.approx(seconds)


@given(st.integers(1, 2000), st.floats(1, 1e12), st.floats(1, 1e12), st.floats(0, 1))
def test_the_closed_form_of_patarasuk_and_yuan(ranks, num_bytes, bandwidth, latency):
    expected = 2 * (ranks - 1) / ranks * num_bytes / bandwidth + 2 * (ranks - 1) * latency
    found = model.ring_allreduce_seconds(num_bytes, ranks, Link(bandwidth, latency))
    assert found == pytest.approx(expected)


def test_within_hosts_first():
    local, remote = Link(1000.0, 0.001), Link(10.0, 0.1)
    found = Cluster(4, local, remote).allreduce_seconds(400.0, 12, hierarchical=True)
    # reduce-scatter: 3 steps of a quarter; between hosts: 4 steps of a third; allgather as before.
    expected = 2 * 3 * (100 / 1000 + 0.001) + 4 * (400 / 3 / 10 + 0.1)
    assert found == pytest.approx(expected)


def test_a_cluster_takes_the_slowest_of_its_links():
    cluster = Cluster(4, Link(1000.0, 0.2), Link(10.0, 0.1))
    one_host = cluster.allreduce_seconds(400.0, 4, hierarchical=True)
    assert one_host == model.ring_allreduce_seconds(400.0, 4, cluster.local)
    ring = cluster.allreduce_seconds(400.0, 8, hierarchical=False)
    assert ring == pytest.approx(14 * (400 / 8 / 10 + 0.2))
    hierarchical = cluster.allreduce_seconds(400.0, 8, hierarchical=True)
    assert hierarchical == pytest.approx(6 * (400 / 4 / 1000 + 0.2) + 2 * (400 / 2 / 10 + 0.1))
    with pytest.raises(ValueError, match="6 ranks do not fill hosts of 4"):
        cluster.allreduce_seconds(400.0, 6, hierarchical=False)


def test_gbit_are_ten_to_the_ninth_bits():
    assert Link.from_gbit(8.0, 0.25) == Link(1e9, 0.25)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(-1, 1))
def test_what_is_hidden_is_found_again(compute, communication, share):
    seconds = model.update_seconds(compute, communication, share)
    found = model.hidden_share(seconds, compute, communication)
    assert found == pytest.approx(share, abs=1e-6 * (1 + compute / communication))


@given(st.floats(0.001, 1000), st.integers(2, 1000))
def test_the_worth_of_the_delay(ratio, steps):
    every = steps * (1 + ratio)
    once = steps + ratio
    assert model.communication_to_compute(every / once, steps) == pytest.approx(ratio, rel=1e-3)


def test_rows_and_table_cost_the_same_at_the_crossing():
    ranks = model.rows_pay_up_to(table_bytes=800.0, row_bytes=200.0)
    assert ranks == 8.0
    link = Link(7.0)
    allgather = {ranks: (ranks - 1) * 200.0 / 7.0 for ranks in (7, 8)}  # each sends its rows on
    assert allgather[8] == pytest.approx(model.ring_allreduce_seconds(800.0, 8, link))
    assert allgather[7] < model.ring_allreduce_seconds(800, 7, link)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_fit_finds_bandwidth_and_latency(ranks):
    sizes = np.array([4e3, 1e6, 4e6, 16e6])
    link = Link(1e8, latency_seconds=0.002)
    found = model.fit_ring(
        sizes, [model.ring_allreduce_seconds(s, ranks, link) for s in sizes], ranks
    )
    assert found.bytes_per_second == pytest.approx(1e8)
    assert found.latency_seconds == pytest.approx(0.002)


def test_no_latency_is_below_zero():
    """The first bytes may pass at once; the rate is then that of sizes in proportion."""
    sizes = np.array([1e6, 4e6, 16e6])
    found = model.fit_ring(sizes, sizes / 1e8 - 0.001, ranks=2)
    assert found.latency_seconds == 0.0
    relative = 1 - sizes / found.bytes_per_second / (sizes / 1e8 - 0.001)
    steeper, flatter = (
        1 - factor * sizes / found.bytes_per_second / (sizes / 1e8 - 0.001)
        for factor in (0.999, 1.001)
    )
    assert (relative**2).sum() < min((steeper**2).sum(), (flatter**2).sum())


def test_times_that_do_not_grow_are_no_link():
    with pytest.raises(ValueError, match="no longer than small ones"):
        model.fit_ring([1e3, 1e6], [0.2, 0.1], ranks=2)
    with pytest.raises(ValueError, match="no time on the link"):
        model.fit_ring([1e3, 1e6], [0.0, 0.1], ranks=2)
