"""Updates of ranks: closed forms against steps acted out, and figures put together from seconds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.communication import cases as kinds
from benchmarks.communication import model
from benchmarks.communication.cases import Case
from benchmarks.communication.model import Cluster, Link
from benchmarks.communication.rank_jobs import Job, Measured, run_on_one_host
from benchmarks.studies import delayed_allreduce, predicted_scaling, scaling_model
from benchmarks.studies.distillation_study import STUDY, predicted_minutes
from bert_tf.util.errors import UserError
from tests.helpers.programs import requires_horovod
from tests.helpers.small_span_model import CONFIG

JOB = Job(CONFIG, {"micro_batch_size": 8, "num_threads": 1})
SMALL = Job(CONFIG, {"micro_batch_size": 2, "seq_length": 8, "num_threads": 1, "turns": 2,
                      "micro_batches_a_turn": 1})  # fmt: skip
LINK = Link(bytes_per_second=1e8, latency_seconds=1e-4)


def acted_out_ring(ranks, num_bytes, link):
    """Sends the parts round in turn, and adds them up; returns the seconds and the ranks' sums."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    seconds = 0.0
    for step in range(2 * (ranks - 1)):
        seconds += link.latency_seconds + num_bytes / ranks / link.bytes_per_second
        parts = [(rank - step) % ranks for rank in range(ranks)]
        sent = [held[rank][part] for rank, part in enumerate(parts)]
        for rank, (part, content) in enumerate(zip(parts, sent)):
            held[(rank + 1) % ranks][part] = held[(rank + 1) % ranks][part] | content
    return seconds, held


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_a_ring_takes_as_long_as_its_steps(ranks):
    seconds, held = acted_out_ring(ranks, 600.0, LINK)
    everyone = set(range(ranks))
    assert all(part == everyone for parts in held for part in parts), "the reference adds up all"
    assert model.ring_allreduce_seconds(600.0, ranks, LINK) == pytest.approx(seconds)
    assert Link.from_gbit(8.0, 0.25) == Link(1e9, 0.25)


def test_a_cluster_takes_the_slowest_of_its_links():
    cluster = Cluster(4, Link(1000.0, 0.2), Link(10.0, 0.1))
    one_host = cluster.allreduce_seconds(400.0, 4, hierarchical=True)
    assert one_host == model.ring_allreduce_seconds(400.0, 4, cluster.local)
    ring = cluster.allreduce_seconds(400.0, 8, hierarchical=False)
    assert ring == pytest.approx(14 * (400 / 8 / 10 + 0.2))
    # Reduce-scatter: 3 steps of a quarter; between hosts: 2 of a half; allgather as the first.
    hierarchical = cluster.allreduce_seconds(400.0, 8, hierarchical=True)
    assert hierarchical == pytest.approx(6 * (400 / 4 / 1000 + 0.2) + 2 * (400 / 2 / 10 + 0.1))
    with pytest.raises(ValueError, match="6 ranks do not fill hosts of 4"):
        cluster.allreduce_seconds(400.0, 6, hierarchical=False)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(-1, 1), st.integers(2, 1000))
def test_what_is_hidden_and_what_a_delay_is_worth_are_found_again(
    compute, communication, share, steps
):
    seconds = model.update_seconds(compute, communication, share)
    found = model.hidden_share(seconds, compute, communication)
    assert found == pytest.approx(share, abs=1e-6 * (1 + compute / communication))
    ratio = communication / compute
    every, once = steps * (1 + ratio), steps + ratio
    assert model.communication_to_compute(every / once, steps) == pytest.approx(ratio, rel=1e-3)


def test_the_fit_finds_bandwidth_and_latency():
    sizes = np.array([4e3, 1e6, 4e6, 16e6])
    seconds = [model.ring_allreduce_seconds(size, 4, LINK) for size in sizes]
    found = model.fit_ring(sizes, seconds, 4)
    assert found.bytes_per_second == pytest.approx(1e8)
    assert found.latency_seconds == pytest.approx(1e-4)
    # The first bytes may pass at once; no latency is below zero.
    assert model.fit_ring(sizes[1:], sizes[1:] / 1e8 - 0.001, ranks=2).latency_seconds == 0.0
    for seconds, message in (([0.2, 0.1], "no longer than small"), ([0.0, 0.1], "no time on the")):
        with pytest.raises(ValueError, match=message):
            model.fit_ring([1e3, 1e6], seconds, ranks=2)


def measured(seconds, **facts):
    return Measured(
        {Case.parse(text): turns for text, turns in seconds.items()},
        {"ranks": 2, "hosts": 2, "gradient_bytes": 10**7, **facts},
    )


def values(results, subject="ours"):
    return {r["name"]: r["value"] for r in results if r["subject"] == subject}


def test_one_link():
    """A micro batch takes 1 s, an allreduce 2, half of it hidden where nothing is accumulated."""
    found = measured({
        "delayed:1": [2.0, 2.0, 2.0], "every_micro_batch:1": [2.0, 4.0, 1.0],
        "delayed:4": [6.0, 6.0, 12.0], "every_micro_batch:4": [12.0, 15.0, 12.0],
        "delayed:1:fp16": [1.0, 1.0, 1.0], "compute:1": [1.0, 1.0, 1.0],
        "communication:1": [2.0, 2.0, 2.0], "communication:1:fp16": [0.5, 0.5, 0.5],
        "embedding_dense:4608": [3.0, 3.0, 3.0], "embedding_rows:4608": [1.5, 1.5, 1.5],
    })  # fmt: skip
    assert set(delayed_allreduce.cases_of([1, 4])) == set(found.seconds)
    results = list(delayed_allreduce.link_results(found, JOB, [1, 4], {"link": "x"}))
    table, rows = 30522 * 768 * 4, 4608 * (768 * 4 + 4)
    found = values(results)
    expected = {
        "communication to computation": 2.0,
        "every micro batch, 4 micro batches": 64 / 12,
        "delayed to every, 4 micro batches": 2.0,
        "float16 to float32, allreduce alone": 4.0,
        "communication hidden by computation": 0.5,
        "embedding gradient as rows, sent by a rank": rows / 1e6,
        "embedding gradient, table to rows": 2.0,
        "embedding gradient, ranks up to which rows are less": 2 * table / rows,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def pair_of_jobs(ranks, *, hidden, on_link=1.0):
    """Hosts that take a while by themselves, and a link of 100 MB/s ``on_link`` times as slow."""
    free = {"communication:1": 0.03, "delayed:1": 0.08, "delayed:4": 0.23}
    free.update({f"allreduce:{size}": 1e-9 * size for size in scaling_model._FITTED_BYTES})
    slow = {}
    for name, seconds in free.items():
        size = int(name.split(":")[1]) if name.startswith("allreduce") else 10**7
        share = 1.0 - hidden if name == "delayed:1" else 1.0
        slow[name] = seconds + share * on_link * model.ring_allreduce_seconds(size, ranks, LINK)
    jobs = ({name: [value] * 3 for name, value in of.items()} for of in (free, slow))
    return scaling_model.Pair(*(measured(seconds, ranks=ranks) for seconds in jobs))


def test_the_model_predicts_what_it_describes():
    fitted = scaling_model.fit(pair_of_jobs(2, hidden=0.25))
    assert fitted.hidden_share == pytest.approx(0.25)
    results = list(scaling_model.check_results(pair_of_jobs(4, hidden=0.25), fitted, 4, {}))
    found, predicted = values(results), values(results, "model")
    for name in ("allreduce of the gradients", "update of 1 micro batches"):
        assert predicted[f"{name}, 4 hosts, predicted"] == pytest.approx(found[f"{name}, 4 hosts"])
        assert predicted[f"{name}, 4 hosts, error"] == pytest.approx(0.0, abs=1e-6)
    # 4/3 of 10 MB at 100 MB/s and 4 x 0.1 ms are 133.7 ms, taken for half of the truth.
    fitted = scaling_model.fit(pair_of_jobs(2, hidden=0.0))
    slower = pair_of_jobs(3, hidden=0.0, on_link=2.0)
    predicted = values(scaling_model.check_results(slower, fitted, 4, {}), "model")
    expected = 100 * ((0.23 + 0.13373) / (0.23 + 2 * 0.13373) - 1)
    assert predicted["update of 4 micro batches, 3 hosts, error"] == pytest.approx(expected, 1e-3)
    with pytest.raises(UserError, match=r"no time on the link; use a slower one\.$"):
        scaling_model.fit(pair_of_jobs(2, hidden=0.0, on_link=0.0))


def test_published_clusters(capsys):
    """The model knows of bandwidth alone, so that it is what they could have reached."""
    base, large = map(predicted_scaling.parameters_of, predicted_scaling.NETWORKS.values())
    assert (base, large) == (pytest.approx(110e6, rel=0.01), pytest.approx(340e6, rel=0.02))
    results = list(predicted_scaling.print_efficiencies())
    shares = {tuple(result["config"].values())[:6]: result["value"] for result in results}
    # By hand: 32 sequences in 59 ms, then 2 x 15/16 of 440 MB at 1.25 GB/s.
    expected = 0.0593 / (0.0593 + 0.66)
    assert shares[16, "BERT-base", 10, 32, 1, False] == pytest.approx(expected, rel=0.02)
    results = list(predicted_scaling.print_published())
    published = predicted_scaling.PUBLISHED
    for row, found, predicted in zip(published, results[::2], results[1::2]):
        assert found["value"] == row.speedup < predicted["value"] < row.ranks / row.base_ranks
    capsys.readouterr()
    for row in STUDY[1:3]:
        assert predicted_minutes(row) == pytest.approx(row.minutes), "the fit meets these"


def test_cases_are_read():
    assert Case.parse("delayed") == Case("delayed", 1, "none")
    for text in ("compute:50:none", "communication:1:fp16"):
        assert str(Case.parse(text)) == text
    assert [Case.parse(text).micro_batches for text in ("compute:4", "allreduce:4096")] == [4, 1]
    for text in ("", "late", "delayed:0", "delayed:x", "delayed:1:fp8", "delayed:1:fp16:2"):
        with pytest.raises(UserError, match=r"--cases: '.*' is not KIND"):
            Case.parse(text)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "ranks", [None, pytest.param(2, marks=[requires_horovod, pytest.mark.parallel])]
)
def test_ranks_measure_every_kind(ranks):
    network = dataclasses.replace(CONFIG, vocab_size=1 << 17)  # gradients of 17 MB
    alone = Case(kinds.ALLREDUCE, 4 * 32 * network.vocab_size)
    cases = [*(Case(kind, 2) for kind in kinds.KINDS), Case(kinds.DELAYED, 1, "fp16"), alone]
    found = run_on_one_host(dataclasses.replace(SMALL, network=network), cases, ranks=ranks)
    assert list(found.seconds) == cases
    assert all(len(turns) == 2 and min(turns) > 0 for turns in found.seconds.values())
    assert found.details["gradient_bytes"] == 4 * predicted_scaling.parameters_of(network)
    assert [found.details[name] for name in ("ranks", "hosts", "threads")] == [ranks or 1, 1, 1]
    if ranks is not None:
        # The same number of bytes: what sends nothing at all is a hundred times faster.
        communication = min(found.seconds[Case(kinds.COMMUNICATION, 2)])
        assert communication > 0.1 * min(found.seconds[alone])
