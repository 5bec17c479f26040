"""The choice from figures that are given, how they are kept, and that ranks agree on it."""

import dataclasses
import json
import math
import re
import signal
import sys
import threading

import pytest

from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model_directory.run_record import RunRecord
from bert_tf.native import library
from bert_tf.ranks.single import SingleProcess
from bert_tf.train.arithmetic import choose_arithmetic
from bert_tf.tuning import native_ops, speed_choice, speed_probe
from bert_tf.tuning.bfloat16_trial import REFUSED
from bert_tf.tuning.hardware import Hardware
from bert_tf.tuning.session import SessionSettings
from bert_tf.tuning.speed_choice import (
    Wanted,
    choose_speed,
    decide,
    read_cached_figures,
    slowest,
    write_cached,
)
from bert_tf.tuning.speed_probe import JobShapes, measure
from bert_tf.tuning.update_probe import update_pieces
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import NativeKernels
from bert_tf.util.errors import UserError
from bert_tf.util.sealed_json import sealed
from tests.helpers.jobs import begun
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.settings import runtime_settings
from tests.helpers.thread_ranks import run_ranks
from tests.helpers.tiny_pretraining import pretraining_settings

BASE = BertConfig(vocab_size=100)
SHAPES = JobShapes.of(BASE, sequences=16, length=128, accumulation_steps=1)
CPU = Hardware()
BOTH, FORMS = ["fp32", "bf16"], ["native", "tensorflow"]


def figures(fp32, bf16, *, native=1.0, tensorflow=2.0):
    """Of products with these rates, in GFLOP/s, and of the rest of a layer in seconds."""
    rest = {"native": native, "tensorflow": tensorflow}
    return {
        "fp32": {"products": 1000.0 / fp32, **rest},
        "bf16": {"products": 1000.0 / bf16, **rest},
    }


@pytest.fixture(autouse=True)
def trial(monkeypatch):
    """Bfloat16 works, or ends with the status that is set; counts its trials."""
    found = {"status": 0, "calls": 0}

    def stand_in():
        found["calls"] += 1
        return found["status"]

    monkeypatch.setattr(speed_choice, "try_bf16", stand_in)
    return found


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What is to be measured, and how often it was; native operations count as built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "load", lambda: object())
    monkeypatch.setattr(native_ops, "native_operations", lambda: object())
    found = {"figures": figures(320.0, 170.0), "calls": 0}

    def stand_in(shapes, policies, forms, **_):
        found["calls"] += 1
        return {
            name: {piece: found["figures"][name][piece] for piece in ["products", *forms]}
            for name in policies
        }

    monkeypatch.setattr(speed_choice.speed_probe, "measure", stand_in)
    return found


def choose(shapes=SHAPES, *, hardware=CPU, ranks=None, earlier=None, **wanted):
    ranks = ranks or SingleProcess(2)
    return choose_speed(Wanted(**wanted), shapes, hardware=hardware, ranks=ranks, earlier=earlier)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((320.0, 170.0), "fp32"),  # bfloat16 instructions at half the rate
        ((100.0, 600.0), "bf16"),
        ((100.0, 200.0), "bf16"),
        ((100.0, 104.0), "fp32"),  # within noise
        ((100.0, 112.0), "bf16"),
        ((100.0, 0.5), "fp32"),
    ],
)
def test_the_faster_precision_is_taken_and_float32_in_doubt(rates, expected):
    assert decide(figures(*rates), BOTH, FORMS) == (expected, "native")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((1.0, 2.0), "native"), ((2.0, 1.9), "native"), ((9.0, 2.0), "tensorflow")],
)
def test_native_operations_are_taken_unless_they_are_slower(seconds, expected):
    native, tensorflow = seconds
    found = figures(320.0, 170.0, native=native, tensorflow=tensorflow)
    assert decide(found, BOTH, FORMS) == ("fp32", expected)


def test_casts_count_as_much_as_products():
    found = figures(100.0, 125.0)
    found["bf16"]["native"] += 3.0
    found["bf16"]["tensorflow"] += 3.0
    assert decide(found, BOTH, FORMS) == ("fp32", "native")


def test_a_precision_without_layers_is_not_taken():
    found = {**figures(100.0, 1.0), "bf16": {"products": 0.001}}
    assert decide(found, BOTH, FORMS) == ("fp32", "native")
    assert decide(found, ["bf16"], FORMS) == ("bf16", "native"), "it was requested"


def test_the_slowest_rank_counts_and_what_one_lacks_is_missing():
    fast, slow = figures(100.0, 600.0), figures(100.0, 50.0, native=3.0)
    del slow["bf16"]["native"]
    assert slowest([fast, slow]) == {
        "fp32": {"products": 10.0, "native": 3.0, "tensorflow": 2.0},
        "bf16": {"products": 20.0, "tensorflow": 2.0},
    }


def test_measurements_are_in_the_details(measured):
    choice = choose()
    assert choice.precision == "fp32"
    assert choice.options == ForwardOptions(policy_for("fp32"), native_layers=True)
    assert choice.against_native_ops is None
    rates = choice.details["fp32_gflops"], choice.details["bf16_gflops"]
    assert rates[0] / rates[1] == pytest.approx(320 / 170, rel=0.01)
    # Six dense products of a layer, each three times, for 2048 tokens.
    operations = 3 * 2 * 2048 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert rates[0] == pytest.approx(operations / (1000 / 320) / 1e9, rel=0.01)
    assert choice.details["native_ms"] == 1000
    assert choice.details["tensorflow_ms"] == 2000
    assert (choice.details["asked"], choice.details["measured"]) == ("auto", "now")


def test_the_choice_is_kept_for_the_processor(measured, monkeypatch):
    first = choose()
    second = choose()
    assert measured["calls"] == 1
    assert (second.precision, second.details["measured"]) == (first.precision, "before")
    choose(dataclasses.replace(SHAPES, sequences=4))
    choose(ranks=SingleProcess(3))
    choose(precision="fp32")
    assert measured["calls"] == 4
    monkeypatch.setattr(speed_choice.environment, "processor", lambda: "another one")
    choose()
    assert measured["calls"] == 5


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (figures(320.0, 170.0, native=9.0), "measured, and faster here"),
        (figures(320.0, 170.0), None),
    ],
)
def test_native_operations_that_were_not_requested_are_measured(measured, found, expected):
    measured["figures"] = found
    choice = choose(precision="fp32")
    assert choice.against_native_ops == expected
    assert choice.options.native_layers == (expected is None)
    requested = choose(precision="fp32", native_ops=True)
    assert requested.against_native_ops is None
    assert requested.details == {}, "nothing is open"


@pytest.mark.parametrize(
    ("wanted", "precision"),
    [
        ({"precision": "fp16"}, "fp16"),
        ({"policy_changes": {"loss": "float16"}}, "fp32"),
        ({"hardware": Hardware((8, 0))}, "bf16"),
        ({"hardware": Hardware((7, 0))}, "fp16"),
        ({"shapes": JobShapes(4, 12, 1, 8, 8, 2, "gelu")}, "fp32"),
        ({"precision": "fp32", "native_ops": False}, "fp32"),
    ],
)
def test_what_is_not_measured(measured, wanted, precision):
    choice = choose(**wanted)
    assert (choice.precision, choice.details, measured["calls"]) == (precision, {}, 0)


@pytest.mark.parametrize(
    ("wanted", "rates", "warning"),
    [
        ({"precision": "bf16"}, (320.0, 170.0), "fp32 is faster here"),
        ({"precision": "bf16"}, (100.0, 600.0), None),
        (
            {"precision": "fp32", "policy_changes": {"softmax": "bfloat16"}},
            (320.0, 170.0),
            "fp32 is",
        ),
        ({"policy_changes": {"dense": "bfloat16"}}, (320.0, 170.0), "fp32 is faster here"),
        ({"policy_changes": {"dense": "float32"}}, (320.0, 170.0), None),
        ({}, (320.0, 170.0), None),
    ],
)
def test_a_slower_request_gives_a_warning(measured, wanted, rates, warning):
    measured["figures"] = figures(*rates)
    choice = choose(**wanted)
    assert choice.precision == wanted.get("precision", "fp32")
    assert len(choice.warnings) == (warning is not None)
    if warning:
        assert warning in choice.warnings[0]
        assert " in bf16 on this CPU and at " in choice.warnings[0]


@pytest.mark.parametrize(
    ("status", "how"),
    [(-signal.SIGABRT, r"crashes \(SIGABRT\) in"), (REFUSED, "refuses")],
)
def test_where_bfloat16_crashes_float32_is_taken_and_said(measured, trial, status, how):
    measured["figures"] = figures(100.0, 600.0)
    trial["status"] = status
    for _ in range(2):
        choice = choose()
        assert choice.precision == "fp32"
        [warning] = choice.warnings
        assert re.fullmatch(f"TensorFlow {how} bfloat16 products on .*; .* float32", warning)
    assert trial["calls"] == 1, "the result is kept"
    with pytest.raises(UserError, match=f"TensorFlow {how} bfloat16 .*; use float32"):
        choose(precision="bf16")
    assert choose(precision="fp32").warnings == ()


@pytest.mark.parametrize("status", [1, -signal.SIGINT, -signal.SIGKILL])
def test_a_trial_that_does_not_end_by_itself_decides_nothing(measured, trial, status):
    measured["figures"] = figures(100.0, 600.0)
    trial["status"] = status
    for _ in range(2):
        choice = choose()
        assert (choice.precision, choice.warnings) == ("bf16", ())
    assert trial["calls"] == 2, "nothing is kept"


def test_a_limit_on_the_processor_is_tried_again(measured, trial, monkeypatch):
    choose()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    choose()
    assert (trial["calls"], measured["calls"]) == (2, 2)


def test_the_trial_ends_itself_and_not_its_caller(monkeypatch):
    monkeypatch.undo()
    trial = [sys.executable, "-c", "import os; os.kill(os.getpid(), 6)"]
    assert speed_choice.try_bf16(trial) == -signal.SIGABRT


@pytest.mark.slow
def test_the_real_trial_ends(monkeypatch):
    monkeypatch.undo()
    assert speed_choice.try_bf16() in (0, REFUSED, -signal.SIGABRT)


def test_a_resumed_run_keeps_its_choice(measured):
    measured["figures"] = figures(100.0, 600.0)
    first = choose()
    assert first.precision == "bf16"
    measured["figures"] = figures(320.0, 170.0)
    details = json.loads(json.dumps(first.details))
    resumed = choose(dataclasses.replace(SHAPES, length=64), earlier=details)
    assert resumed.precision == "fp32", "other conditions are measured"
    calls = measured["calls"]
    for path in speed_choice.cache_directory().glob("*.json"):
        path.unlink()
    resumed = choose(earlier=details)
    assert (resumed.precision, resumed.details["measured"]) == ("bf16", "when the run began")
    assert measured["calls"] == calls
    assert choose(earlier={**details, "seconds": {"fp32": "fast"}}).precision == "fp32"
    assert measured["calls"] == calls + 1


def test_a_run_has_the_choice_in_its_policy(measured, tmp_path):
    measured["figures"] = figures(100.0, 600.0)
    settings = pretraining_settings(tmp_path)
    record = RunRecord(tmp_path / "run.json", {"ledger": {}})
    messages = []
    log = type("Log", (), {"message": staticmethod(messages.append)})
    run = begun(
        settings=settings.run,
        runtime=runtime_settings(precision="bf16"),
        record=record,
        log=log,
    )
    batch = BatchPlan(16, 1, world_size=1)
    chosen = choose_arithmetic(run, BASE, batch, max_seq_length=128)
    assert chosen.precision == "bf16"
    assert chosen.options == ForwardOptions(policy_for("bf16"), native_layers=True)
    assert isinstance(chosen.kernels, NativeKernels)
    assert chosen.measured["speed"]["bf16_gflops"] > chosen.measured["speed"]["fp32_gflops"]
    measured["figures"] = figures(320.0, 170.0)
    record.content["ledger"]["speed"] = chosen.measured["speed"]
    again = choose_arithmetic(run, BASE, batch, max_seq_length=128)
    assert (again.measured["speed"]["measured"], messages) == ("when the run began", [])


def conditions_of(directory):
    """Those of the only figures that are kept in a directory."""
    [path] = directory.glob("*.json")
    return path, json.loads(path.read_text())["conditions"]


READ = {"precisions": BOTH, "forms": FORMS}


def test_figures_come_back_as_they_were_kept(tmp_path):
    found = figures(320.0, 170.0)
    write_cached(tmp_path / "new" / "cache", "here", found)
    assert read_cached_figures(tmp_path / "new" / "cache", "here", **READ) == found
    assert read_cached_figures(tmp_path / "new" / "cache", "there", **READ) is None
    assert read_cached_figures(None, "here", **READ) is None


GOOD = figures(320.0, 170.0)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\x00\x01",
        json.dumps({"conditions": "here", "seconds": GOOD}),  # without a digest
        json.dumps(sealed({"conditions": "here"})),
        json.dumps(sealed({"conditions": "elsewhere", "seconds": GOOD})),
        json.dumps(sealed({"conditions": "here", "seconds": {"fp32": GOOD["fp32"]}})),
        json.dumps(sealed({"conditions": "here", "seconds": {**GOOD, "bf16": {}}})),
        json.dumps(sealed({"conditions": "here", "seconds": {**GOOD, "fp32": {"products": 1.0}}})),
        json.dumps(sealed({"conditions": "here", "seconds": {**GOOD, "bf16": {"products": -1.0}}})),
        json.dumps(
            sealed({"conditions": "here", "seconds": {**GOOD, "bf16": {"products": math.nan}}})
        ),
        json.dumps(sealed({"conditions": "here", "seconds": {**GOOD, "bf16": {"products": "1"}}})),
        json.dumps(sealed({"conditions": "here", "seconds": [1.0]})),
    ],
)
def test_a_foreign_or_broken_file_is_none(tmp_path, content):
    write_cached(tmp_path, "here", GOOD)
    path, _ = conditions_of(tmp_path)
    path.write_text(content)
    assert read_cached_figures(tmp_path, "here", **READ) is None
    write_cached(tmp_path, "here", GOOD)
    assert read_cached_figures(tmp_path, "here", **READ) == GOOD


def test_a_cache_that_cannot_be_used_harms_nothing(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [choose().precision, choose().precision] == ["fp32", "fp32"]
    assert measured["calls"] == 2
    directory = tmp_path / "cache" / "bert_tf" / "speed"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    choose()
    path, _ = conditions_of(directory)
    path.unlink()
    path.mkdir()  # in the file's place
    assert choose().precision == "fp32"
    assert [found.name for found in directory.iterdir()] == [path.name], "nothing half written"


def test_where_figures_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert speed_choice.cache_directory() == tmp_path / ".cache" / "bert_tf" / "speed"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert speed_choice.cache_directory() == tmp_path / "x" / "bert_tf" / "speed"


def on_two_ranks(monkeypatch, rank_figures, tmp_path):
    """The choices of ranks that measure what is given, each with a separate cache."""
    this_thread, calls = threading.local(), []

    def measure(shapes, policies, forms, **_):
        calls.append(this_thread.rank)
        return rank_figures[this_thread.rank]

    monkeypatch.setattr(speed_choice.speed_probe, "measure", measure)
    monkeypatch.setattr(speed_choice, "cache_directory", lambda: tmp_path / str(this_thread.rank))

    def action(ranks):
        this_thread.rank = ranks.rank
        return choose(ranks=ranks)

    return run_ranks(len(rank_figures), action), calls


@pytest.mark.usefixtures("measured")
def test_all_ranks_take_what_makes_the_slowest_fastest(monkeypatch, tmp_path):
    rank_figures = [figures(100.0, 600.0), figures(90.0, 60.0)]
    choices, calls = on_two_ranks(monkeypatch, rank_figures, tmp_path)
    assert [choice.precision for choice in choices] == ["fp32", "fp32"]
    assert choices[0].details == choices[1].details
    assert sorted(calls) == [0, 1]


@pytest.mark.usefixtures("measured")
def test_ranks_with_different_caches_measure_together(monkeypatch, tmp_path):
    rank_figures = [figures(100.0, 600.0), figures(100.0, 600.0)]
    on_two_ranks(monkeypatch, rank_figures, tmp_path)
    for path in (tmp_path / "1").glob("*.json"):
        path.unlink()
    rank_figures[:] = [figures(320.0, 170.0), figures(320.0, 170.0)]
    choices, calls = on_two_ranks(monkeypatch, rank_figures, tmp_path)
    assert [choice.precision for choice in choices] == ["fp32", "fp32"]
    assert sorted(calls) == [0, 1], "what one rank has kept is not compared with what is new"
    choices, calls = on_two_ranks(monkeypatch, rank_figures, tmp_path)
    assert ([choice.details["measured"] for choice in choices], calls) == (["before"] * 2, [])


@requires_native_ops
@pytest.mark.parametrize(("accumulation_steps", "tokens"), [(0, 16), (2, 16), (2, 8)])
def test_every_piece_of_a_layer_is_timed(monkeypatch, accumulation_steps, tokens):
    monkeypatch.setattr(speed_probe, "_OPERATIONS_A_THREAD", 1)
    monkeypatch.setattr(speed_probe, "_FEWEST_TOKENS", tokens)
    shapes = JobShapes(2, 8, accumulation_steps, 8, 16, 2, "gelu")
    ticks = iter(range(10_000))
    found = measure(
        shapes,
        {name: policy_for(name) for name in BOTH},
        {"native": True, "tensorflow": False},
        settings=SessionSettings(threads=1),
        update=update_pieces,
        clock=lambda: float(next(ticks)),
    )
    # Every operation takes one tick here, and counts as often as a layer has it. A dense layer's
    # kernel stands for those of others.
    dense, times = shapes.kernel_weights / (8 * 16), 16 / tokens
    update = dense / accumulation_steps if accumulation_steps else 0
    assert found["fp32"]["products"] == pytest.approx(times * dense)
    assert found["bf16"]["products"] == pytest.approx(times * dense + update)
    for pieces in found.values():
        assert pieces["native"] == pieces["tensorflow"] == pytest.approx(4 * times + update)
