"""How many threads ranks get, from figures that are given, and what is timed for it."""

import threading

import pytest

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.precision import Hardware, policy_for
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.training import run as training_run
from bert_tf.training import speed_probe, thread_choice
from bert_tf.training.speed_probe import JobShapes, time_threads
from bert_tf.training.thread_choice import choose_threads
from bert_tf.update.kernels import TensorFlowKernels
from tests.support import optimization_settings, runtime_settings
from tests.thread_ranks import run_ranks
from tests.tiny_pretraining import pretraining_settings

BASE = BertConfig(vocab_size=100)
SHAPES = JobShapes.of(BASE, sequences=16, length=128, accumulation_steps=1)


@pytest.fixture(autouse=True)
def threads_of_sessions(monkeypatch):
    """What a choice sets for the process is not left to other tests."""
    monkeypatch.setenv("TF_OVERRIDE_GLOBAL_THREADPOOL", "0")


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Eight hyper-threads on four cores: the seconds that are found, and how often."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(thread_choice.environment, "physical_cores", lambda: 4)
    found = {"seconds": {8: 1.0, 4: 0.5}, "calls": 0}

    def stand_in(*_):
        found["calls"] += 1
        return found["seconds"]

    monkeypatch.setattr(speed_probe, "time_threads", stand_in)
    return found


def choose(ranks, *, shapes=SHAPES, earlier=None):
    return choose_threads(
        ranks, shapes, policy=policy_for("fp32"), kernels=TensorFlowKernels("here"), earlier=earlier
    )


@pytest.mark.parametrize(
    ("seconds", "threads"),
    [
        ({8: 1.0, 4: 0.9}, 4),
        ({8: 1.0, 4: 0.97}, 8),  # within noise
        ({8: 1.0, 4: 1.8}, 8),
        (None, 8),  # other processes are busy
    ],
)
def test_one_thread_a_core_is_taken_where_it_is_faster(measured, seconds, threads):
    measured["seconds"] = seconds
    ranks = SingleProcess(8)
    facts = choose(ranks)
    assert (ranks.threads, facts["one_a_core"]) == (threads, threads == 4)
    if seconds:
        assert facts["8_threads_ms"] == 1000.0
    again = choose(SingleProcess(8))
    assert again["one_a_core"] == facts["one_a_core"]
    assert measured["calls"] == (1 if seconds else 2), "only what shows something is kept"


def test_nothing_is_measured_without_a_choice(measured, monkeypatch):
    for_cores = SingleProcess(4)
    assert choose(for_cores) == {}
    small = JobShapes(2, 8, 1, 8, 16, 2, "gelu")
    assert choose(SingleProcess(8), shapes=small) == {}
    monkeypatch.setattr(thread_choice.environment, "physical_cores", lambda: 8)
    ranks = SingleProcess(8)
    assert choose(ranks) == {}
    assert (ranks.threads, for_cores.threads, measured["calls"]) == (8, 4, 0)


def test_a_run_that_is_resumed_keeps_its_choice(measured, monkeypatch, tmp_path):
    facts = choose(SingleProcess(8))
    measured["seconds"] = {8: 0.5, 4: 1.0}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    ranks = SingleProcess(8)
    assert choose(ranks, earlier=facts) == facts
    assert (ranks.threads, measured["calls"]) == (4, 1)
    for other in ({**facts, "conditions": "another processor"}, {**facts, "one_a_core": 1}):
        ranks = SingleProcess(8)
        assert not choose(ranks, earlier=other)["one_a_core"]
        assert ranks.threads == 8


@pytest.mark.parametrize("kept", [[], {"8": 1.0}, {"8": 1.0, "4": "fast"}, {"8": 1.0, "4": -1.0}])
def test_a_broken_file_is_none(measured, monkeypatch, kept):
    monkeypatch.setattr(thread_choice, "read_kept", lambda *_: kept)
    assert choose(SingleProcess(8))["measured"] == "now"


def test_ranks_do_the_same(measured, monkeypatch, tmp_path):
    """One rank gains by it and the other loses; each has a cache of its own."""
    own, of_ranks = threading.local(), [{8: 1.0, 4: 0.5}, {8: 1.0, 4: 1.5}]
    monkeypatch.setattr(speed_probe, "time_threads", lambda *_: of_ranks[own.rank])
    monkeypatch.setattr(thread_choice, "cache_directory", lambda: tmp_path / str(own.rank))

    def action(ranks):
        own.rank, ranks.threads = ranks.rank, 8
        return choose(ranks)["one_a_core"], ranks.threads

    assert run_ranks(2, action) == [(False, 8)] * 2
    of_ranks[1] = {8: 1.0, 4: 0.5}
    for path in (tmp_path / "1").glob("*.json"):
        path.unlink()
    assert run_ranks(2, action) == [(True, 4)] * 2


@pytest.mark.parametrize(("asked", "expected"), [(None, 4), (8, 8)])
@pytest.mark.usefixtures("measured")
def test_a_run_leaves_the_number_that_was_asked_for(tmp_path, asked, expected):
    ranks = SingleProcess(8)
    settings = pretraining_settings(tmp_path)
    runtime = runtime_settings(precision="fp32", native_ops=False, num_threads=asked)
    run = training_run.Run(
        *(settings.run, runtime, ranks, None, None, None, Hardware(), "fp32", policy_for("fp32")),
        *(None, {}, None),
    )
    optimization = optimization_settings(micro_batch_size=16)
    chosen = training_run.choose_arithmetic(run, BASE, optimization, max_seq_length=128)
    assert (ranks.threads, bool(chosen.threads)) == (expected, asked is None)


def test_every_number_of_threads_is_timed_alike(monkeypatch):
    monkeypatch.setattr(speed_probe.environment, "seconds_waited", lambda: 1.0)
    shapes = JobShapes(2, 8, 1, 8, 16, 2, "gelu")
    ticks = iter(range(10_000))
    found = time_threads(
        shapes,
        policy_for("fp32"),
        TensorFlowKernels("here"),
        (2, 1),
        clock=lambda: float(next(ticks)),
    )
    # Every operation takes one tick here: two products, two of what lies between, the update.
    dense = shapes.kernel_numbers / (8 * 16)
    assert found == {2: pytest.approx(dense + 1 + 4 + dense), 1: found[2]}


def test_a_machine_that_is_busy_shows_nothing(monkeypatch):
    waited = iter([1.0, 9.0])
    monkeypatch.setattr(speed_probe.environment, "seconds_waited", lambda: next(waited))
    shapes = JobShapes(2, 8, 0, 8, 16, 2, "gelu")
    arguments = (shapes, policy_for("fp32"), TensorFlowKernels("here"), (2, 1))
    assert time_threads(*arguments) is None
    monkeypatch.setattr(speed_probe.environment, "seconds_waited", lambda: None)
    assert time_threads(*arguments) is None
