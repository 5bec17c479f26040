"""The comparisons: figures are put together right from what ranks measured."""

from __future__ import annotations

import pytest

from benchmarks.communication import cases as kinds
from benchmarks.communication import rank_jobs
from benchmarks.communication.cases import Case
from benchmarks.communication.model import Link, ring_allreduce_seconds
from benchmarks.communication.rank_jobs import Job, Measured
from benchmarks.studies import delayed_allreduce, predicted_scaling, ranks_per_host, scaling_model
from benchmarks.studies.predicted_scaling import PUBLISHED
from bert_tf.model.config import BertConfig
from bert_tf.util.errors import UserError
from tests.helpers.programs import run

JOB = Job(BertConfig(vocab_size=30), {"micro_batch_size": 8, "num_threads": 1})


def measured(seconds, **facts):
    return Measured(
        {Case.parse(text): turns for text, turns in seconds.items()},
        {"ranks": 2, "hosts": 2, "gradient_bytes": 10**7, **facts},
    )


def by_name(results, subject="ours"):
    chosen = [result for result in results if result["subject"] == subject]
    assert len({result["name"] for result in chosen}) == len(chosen)
    return {result["name"]: result for result in chosen}


def values(results, subject="ours"):
    return {name: result["value"] for name, result in by_name(results, subject).items()}


# In seconds: a micro batch 1, an allreduce 2, half of it hidden where nothing is accumulated.
LINK_SECONDS = {
    "delayed:1": [2.0, 2.0, 2.0],
    "every_micro_batch:1": [2.0, 4.0, 1.0],
    "delayed:4": [6.0, 6.0, 12.0],
    "every_micro_batch:4": [12.0, 15.0, 12.0],
    "delayed:1:fp16": [1.0, 1.0, 1.0],
    "compute:1": [1.0, 1.0, 1.0],
    "communication:1": [2.0, 2.0, 2.0],
    "communication:1:fp16": [0.5, 0.5, 0.5],
    "embedding_dense:4608": [3.0, 3.0, 3.0],
    "embedding_rows:4608": [1.5, 1.5, 1.5],
}


def test_one_link():
    found = measured(LINK_SECONDS)
    assert set(delayed_allreduce.cases_of([1, 4])) == set(found.seconds)
    results = list(delayed_allreduce.link_results(found, JOB, [1, 4], {"link": "x"}))
    table, rows = 30522 * 768 * 4, 4608 * (768 * 4 + 4)
    assert values(results) == {
        "communication to computation": 2.0,
        "delayed, 1 micro batches": 8.0,
        "every micro batch, 1 micro batches": 8.0,
        "delayed to every, 1 micro batches": 1.0,
        "delayed, 4 micro batches": pytest.approx(64 / 6),
        "every micro batch, 4 micro batches": pytest.approx(64 / 12),
        "delayed to every, 4 micro batches": 2.0,
        "float16 to float32, allreduce alone": 4.0,
        "float16 to float32, update of 1 micro batch": 2.0,
        "communication hidden by computation": 0.5,
        "embedding gradient as table, sent by a rank": pytest.approx(table / 1e6),
        "embedding gradient as table": 3.0,
        "embedding gradient as rows, sent by a rank": pytest.approx(rows / 1e6),
        "embedding gradient as rows": 1.5,
        "embedding gradient, table to rows": 2.0,
        "embedding gradient, ranks up to which rows are less": pytest.approx(2 * table / rows),
    }
    ratio = by_name(results)["delayed to every, 4 micro batches"]
    assert ratio["unit"] == "ratio"
    assert ratio["config"]["turns"] == [2.0, 2.5, 1.0]
    assert ratio["config"]["link"] == "x"
    assert ratio["config"]["gradient_bytes"] == 10**7


LINK = Link(1e8, latency_seconds=1e-4)


def pair_of_jobs(ranks, *, hidden, on_link=1.0):
    """Hosts that take a while by themselves, and a link of 100 MB/s ``on_link`` times as slow."""
    free = {"communication:1": 0.03, "delayed:1": 0.08, "delayed:4": 0.23}
    free.update({f"allreduce:{size}": 1e-9 * size for size in scaling_model._FITTED_BYTES})
    slow = {}
    for name, seconds in free.items():
        size = int(name.split(":")[1]) if name.startswith("allreduce") else 10**7
        share = 1.0 - hidden if name == "delayed:1" else 1.0
        slow[name] = seconds + share * on_link * ring_allreduce_seconds(size, ranks, LINK)
    free, slow = (
        measured({name: [value] * 3 for name, value in seconds.items()}, ranks=ranks)
        for seconds in (free, slow)
    )
    return scaling_model.Pair(free, slow)


def test_the_model_predicts_what_it_describes():
    fitted = scaling_model.fit(pair_of_jobs(2, hidden=0.25))
    assert fitted.hidden_share == pytest.approx(0.25)
    assert fitted.link.bytes_per_second == pytest.approx(1e8)
    assert fitted.link.latency_seconds == pytest.approx(1e-4)
    config = {"link": "1 Gbit/s"}
    results = list(scaling_model.check_results(pair_of_jobs(4, hidden=0.25), fitted, 4, config))
    assert all(result["config"]["link"] == "1 Gbit/s" for result in results)
    found, predicted = values(results), values(results, "model")
    for name, by_themselves in {
        "allreduce of the gradients, 4 hosts": 0.03,
        "update of 1 micro batches, 4 hosts": 0.08,
        "update of 4 micro batches, 4 hosts": 0.23,
    }.items():
        assert found.pop(f"{name}, by themselves") == by_themselves
        assert predicted[f"{name}, predicted"] == pytest.approx(found.pop(name))
        assert predicted[f"{name}, error"] == pytest.approx(0.0, abs=1e-6)
    assert not found


def test_its_error_is_stated_with_its_sign():
    fitted = scaling_model.fit(pair_of_jobs(2, hidden=0.0))
    slower = pair_of_jobs(3, hidden=0.0, on_link=2.0)
    results = list(scaling_model.check_results(slower, fitted, 4, {}))
    # By hand: 4/3 of 10 MB at 100 MB/s and 4 x 0.1 ms are 133.7 ms, taken for half of the truth.
    predicted = values(results, "model")
    assert predicted["update of 4 micro batches, 3 hosts, predicted"] == pytest.approx(
        0.23 + 0.13373, 1e-4
    )
    expected = 100 * ((0.23 + 0.13373) / (0.23 + 2 * 0.13373) - 1)
    assert predicted["update of 4 micro batches, 3 hosts, error"] == pytest.approx(expected, 1e-3)


def test_a_link_that_takes_no_time_is_refused():
    pair = pair_of_jobs(2, hidden=0.0, on_link=0.0)
    with pytest.raises(UserError, match=r"no time on the link; use a slower one\.$"):
        scaling_model.fit(pair)


def test_both_jobs_of_a_pair_run_in_a_ring_on_the_same_hosts(monkeypatch):
    """The first with links as they are, the second with the link's rate."""
    happened = []

    class Recorded:
        def __init__(self, count, **settings):
            happened.append((count, settings))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            happened.append("gone")

        def set_rate(self, rate):
            happened.append(rate)

    monkeypatch.setattr(scaling_model, "Hosts", Recorded)
    ring = {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    }

    def note(job, cases, hosts, environment):
        assert environment == ring
        happened.append("job")
        return len(happened)

    monkeypatch.setattr(scaling_model, "run_on_hosts", note)
    pair = scaling_model._measure_pair(JOB, [], 3, "1000")
    assert happened == [(3, {"congestion_control": "reno"}), "job", 1000.0, "job", "gone"]
    assert (pair.free, pair.slow) == (2, 4)


def test_bert_has_as_many_weights_as_published():
    """110 and 340 million, as Devlin et al. (2019) round them."""
    base, large = map(predicted_scaling.parameters_of, predicted_scaling.NETWORKS.values())
    assert base == pytest.approx(110e6, rel=0.01)
    assert large == pytest.approx(340e6, rel=0.02)


def test_efficiencies(capsys):
    results = list(predicted_scaling.print_efficiencies())
    shares = {tuple(result["config"].values())[:6]: result["value"] for result in results}
    assert len(shares) == len(results) == 2 * 2 * 2 * 2 * len(predicted_scaling.RANKS)
    assert all(0 < share < 1 for share in shares.values())
    base = shares[16, "BERT-base", 10, 32, 1, False]
    # By hand: 32 sequences in 59 ms, then 2 x 15/16 of 440 MB at 1.25 GB/s.
    assert base == pytest.approx(0.0593 / (0.0593 + 0.66), rel=0.02)
    for key, share in shares.items():
        ranks, network, gbit, size, steps, hierarchical = key
        if gbit == 10 and ranks > 8:
            assert shares[ranks, network, 100, size, steps, hierarchical] > share
        if steps == 1:
            assert shares[ranks, network, gbit, size, 50, hierarchical] > share
    assert capsys.readouterr().out.count("\n") == 2 + 16


def test_published_speedups_are_below_the_model(capsys):
    """It knows of bandwidth alone, so that it is what they could have reached."""
    results = list(predicted_scaling.print_published())
    assert [result["subject"] for result in results[::2]] == [p.source for p in PUBLISHED]
    for published, (found, predicted) in zip(PUBLISHED, zip(results[::2], results[1::2])):
        assert found["value"] == published.speedup
        assert found["value"] < predicted["value"] < published.ranks / published.base_ranks
    # Brightics: a ring over 64 ranks takes 63/64 to 7/8, which is 9/8, as long as one over 8.
    ratio = (2.0 - 1.0) / (1.0 - 2.0 / 50)
    expected = 8 * (50 + ratio) / (50 + ratio * 9 / 8)
    assert results[-1]["value"] == pytest.approx(expected)
    capsys.readouterr()


def test_ranks_and_one_process():
    update, compute, communication = (
        Case(kind) for kind in (kinds.DELAYED, kinds.COMPUTE, kinds.COMMUNICATION)
    )
    found = {
        "one process": {update: [1.0, 2.0, 1.0]},
        "core": {update: [2.0, 2.0, 1.0], compute: [0.5, 1.0, 0.5], communication: [1.0, 1.0, 0.5]},
    }
    results = list(ranks_per_host.results_of(found, sequences=16, config={"ranks": 2}))
    assert values(results) == {
        "one process": 16.0,
        "ranks, core": 8.0,
        "ranks to one process, core": 1.0,
        "ranks without communication to one process, core": 2.0,
        "allreduce alone to an update, core": 0.5,
    }
    described = by_name(results)["ranks to one process, core"]["config"]
    assert described == {"ranks": 2, "bind_to": "core", "turns": [0.5, 1.0, 1.0]}


def test_both_sides_have_one_global_batch(monkeypatch):
    jobs = []

    def note(job, cases, **_):
        jobs.append(job.flags)
        return measured({str(case): [1.0] for case in cases})

    monkeypatch.setattr(ranks_per_host, "run_on_one_host", note)
    found = ranks_per_host.measure(JOB, ["unbound", "cycle_5_ms"], ranks=3, rounds=2)
    sizes = [(flags["micro_batch_size"], flags["num_threads"]) for flags in jobs]
    assert sizes == [(24, 3), (8, 1), (8, 1)] * 2
    assert [flags.get("cycle_time_ms") for flags in jobs] == [None, None, 5.0] * 2
    assert all(turns == [1.0, 1.0] for seconds in found.values() for turns in seconds.values())


def test_links_have_names():
    assert rank_jobs.describe_link("1000") == "1 Gbit/s"
    assert rank_jobs.describe_link("loopback") == "one host"
    with pytest.raises(UserError, match="'fast' is neither a rate"):
        rank_jobs.describe_link("fast")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("delayed_allreduce --links=fast", "error: --links: 'fast' is neither a rate"),
        ("delayed_allreduce --accumulation_steps=1,0", "error: --accumulation_steps=1,0: give"),
        ("scaling_model --hosts=1,2", "error: --hosts=1,2: one host sends nothing"),
        ("scaling_model --hosts=x", "error: --hosts=x: give whole numbers"),
        ("ranks_per_host --settings=socket", "error: --settings: 'socket' is none of unbound"),
    ],
)
def test_bad_input_ends_in_one_sentence(command, expected):
    name, flag = command.split()
    done = run("-m", f"benchmarks.{name}", flag, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1
