"""How many threads ranks get, from figures that are given, and what is timed for it."""

import itertools
import threading

import pytest

from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.ranks.single import SingleProcess
from bert_tf.train.arithmetic import choose_arithmetic
from bert_tf.tuning import speed_probe, thread_choice
from bert_tf.tuning.speed_probe import JobShapes, time_threads
from bert_tf.tuning.thread_choice import OtherProcesses, choose_threads
from bert_tf.tuning.update_probe import update_pieces
from bert_tf.update.batch_plan import BatchPlan
from tests.helpers.jobs import begun
from tests.helpers.settings import runtime_settings
from tests.helpers.thread_ranks import run_ranks
from tests.helpers.tiny_pretraining import pretraining_settings

BASE = BertConfig(vocab_size=100)
SHAPES = JobShapes.of(BASE, sequences=16, length=128, accumulation_steps=1)


@pytest.fixture(autouse=True)
def threads_of_sessions(monkeypatch):
    """What a choice sets for the process is not left to other tests."""
    monkeypatch.setenv("TF_OVERRIDE_GLOBAL_THREADPOOL", "0")


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The seconds that are found, None on a busy host, and how often they were."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {"seconds": {8: 1.0, 4: 0.5}, "calls": 0}

    def stand_in(*_, **__):
        found["calls"] += 1
        return found["seconds"]

    monkeypatch.setattr(speed_probe, "time_threads", stand_in)
    return found


def choose(ranks, *, shapes=SHAPES, earlier=None):
    return choose_threads(
        ranks, shapes, options=ForwardOptions(), native_update=False, earlier=earlier
    )


@pytest.mark.parametrize(
    ("seconds", "threads"),
    [({8: 1.0, 4: 0.75}, 4), ({8: 1.0, 4: 0.85}, 8), ({8: 1.0, 4: 1.8}, 8)],
    ids=["faster", "not by enough", "slower"],
)
def test_half_of_the_threads_are_taken_where_that_is_faster(measured, seconds, threads):
    measured["seconds"] = seconds
    ranks = SingleProcess(8)
    details = choose(ranks)
    assert (ranks.threads, details["halved"]) == (threads, threads == 4)
    assert (details["8_threads_ms"], details["measured"]) == (1000.0, "now")
    again = choose(SingleProcess(8))
    assert (again["halved"], again["measured"]) == (threads == 4, "before")
    assert measured["calls"] == 1


def test_on_a_busy_host_all_threads_stay_and_nothing_is_kept(measured):
    seconds, measured["seconds"] = measured["seconds"], None
    ranks = SingleProcess(8)
    assert choose(ranks)["measured"] == "no: other processes are busy"
    assert ranks.threads == 8
    measured["seconds"] = seconds
    assert choose(ranks)["halved"]
    assert (ranks.threads, measured["calls"]) == (4, 2)


@pytest.mark.parametrize(
    ("ranks", "busy", "are_busy"),
    [(1, 5.2, False), (1, 5.8, True), (2, 9.2, False), (2, 10.0, False)],
)
def test_load_that_ranks_do_not_explain_is_that_of_others(monkeypatch, ranks, busy, are_busy):
    """Ten processors for two seconds, of which a rank had nine seconds."""
    monkeypatch.setattr(thread_choice.environment, "allowed_cores", lambda: 10)
    readings = {
        "process_time": iter([100.0, 109.0]),
        "perf_counter": iter([50.0, 52.0]),
        "busy_seconds": iter([7.0, 7.0 + 2 * busy]),
    }
    for name, values in readings.items():
        where = thread_choice.environment if name == "busy_seconds" else thread_choice.time
        monkeypatch.setattr(where, name, values.__next__)
    assert OtherProcesses(ranks).are_busy() == are_busy


def test_a_host_with_unknown_load_counts_as_busy(monkeypatch):
    monkeypatch.setattr(thread_choice.environment, "busy_seconds", lambda: None)
    assert OtherProcesses(1).are_busy()


def test_nothing_is_measured_without_a_choice(measured):
    alone, ranks = SingleProcess(1), SingleProcess(8)
    small = JobShapes(2, 8, 1, 8, 16, 2, "gelu")
    assert choose(alone) == choose(ranks, shapes=small) == {}
    assert (ranks.threads, alone.threads, measured["calls"]) == (8, 1, 0)


def test_a_resumed_run_keeps_its_choice(measured, monkeypatch, tmp_path):
    details = choose(SingleProcess(8))
    measured["seconds"] = {8: 0.5, 4: 1.0}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    ranks = SingleProcess(8)
    assert choose(ranks, earlier=details) == details
    assert (ranks.threads, measured["calls"]) == (4, 1)
    for other in ({**details, "conditions": "another processor"}, {**details, "halved": 1}):
        ranks = SingleProcess(8)
        assert not choose(ranks, earlier=other)["halved"]
        assert ranks.threads == 8


@pytest.mark.parametrize("kept", [[], {"8": 1.0}, {"8": 1.0, "4": "fast"}, {"8": 1.0, "4": -1.0}])
def test_a_broken_file_is_none(measured, monkeypatch, kept):
    monkeypatch.setattr(thread_choice, "read_cached", lambda *_: kept)
    assert choose(SingleProcess(8))["measured"] == "now"


def test_ranks_do_the_same(measured, monkeypatch, tmp_path):
    """One rank gains by it and the other loses; each has a separate cache."""
    this_thread, rank_seconds = threading.local(), [{8: 1.0, 4: 0.5}, {8: 1.0, 4: 1.5}]
    monkeypatch.setattr(
        speed_probe, "time_threads", lambda *_, **__: rank_seconds[this_thread.rank]
    )
    monkeypatch.setattr(thread_choice, "cache_directory", lambda: tmp_path / str(this_thread.rank))

    def action(ranks):
        this_thread.rank, ranks.threads = ranks.rank, 8
        return choose(ranks)["halved"], ranks.threads

    assert run_ranks(2, action) == [(False, 8)] * 2
    rank_seconds[1] = {8: 1.0, 4: 0.5}
    for path in (tmp_path / "1").glob("*.json"):
        path.unlink()
    assert run_ranks(2, action) == [(True, 4)] * 2


@pytest.mark.parametrize(("requested", "expected"), [(None, 4), (8, 8)])
@pytest.mark.usefixtures("measured")
def test_a_run_keeps_the_requested_number(tmp_path, requested, expected):
    ranks = SingleProcess(8)
    settings = pretraining_settings(tmp_path)
    runtime = runtime_settings(precision="fp32", native_ops=False, num_threads=requested)
    run = begun(settings=settings.run, runtime=runtime, ranks=ranks)
    batch = BatchPlan(16, 1, world_size=1)
    chosen = choose_arithmetic(run, BASE, batch, max_seq_length=128)
    assert (ranks.threads, "threads" in chosen.measured) == (expected, requested is None)


@pytest.mark.parametrize(("steps", "pieces"), [(1, 2), (0, 1)], ids=["training", "prediction"])
def test_every_number_of_threads_is_timed_equally(steps, pieces):
    shapes = JobShapes(4, 8, steps, 8, 16, 2, "gelu")
    ticks = itertools.count()
    found = time_threads(
        shapes,
        ForwardOptions(),
        (2, 1),
        update=update_pieces,
        native_update=False,
        is_disturbed=lambda: False,
        clock=lambda: float(next(ticks)),
    )
    # Each operation takes one tick here: a layer, and the update of its kernels.
    update = shapes.kernel_weights / (8 * 16) if steps else 0.0
    assert found == {2: pytest.approx(1 + update), 1: found[2]}
    assert next(ticks) == 2 * 2 * pieces * 6


def test_timing_stops_once_others_are_busy():
    shapes = JobShapes(4, 8, 0, 8, 16, 2, "gelu")
    ticks = itertools.count()
    answers = iter([False, True])
    found = time_threads(
        shapes,
        ForwardOptions(),
        (2, 1),
        update=update_pieces,
        native_update=False,
        is_disturbed=lambda: next(answers),
        clock=lambda: float(next(ticks)),
    )
    assert found is None
    assert next(ticks) == 2 * 2 * 2
