"""Loss curves: their arithmetic, the verdict, and runs that go on; trainings by a stand-in."""

import importlib.util
import json
import math
import textwrap

import numpy as np
import pytest
from absl import flags

from benchmarks import loss_curves
from benchmarks.loss_curves_compare import (
    Curve,
    Difference,
    between_seeds,
    difference,
    excess,
    smooth,
)
from benchmarks.loss_curves_runs import VARIANTS, plan_trainings, skipped_updates
from benchmarks.script import define_flags
from benchmarks.speed import process
from benchmarks.trainings import Training
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT

STEPS = tuple(range(10, 210, 10))
# What run_pretraining.py leaves behind, for a loss that depends on the variant. bf16 learns as
# float32 does; the loss scale of fp16 skips updates; amp learns nothing in the second half.
STAND_IN = textwrap.dedent("""
    import json, pathlib, sys
    flags = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
    output = pathlib.Path(flags["output_dir"])
    output.mkdir(exist_ok=True)
    resolved = {n: json.loads(t) if t[:1].isdigit() else t or True for n, t in flags.items()}
    record = {"flags": resolved, "git_commit": "abc"}
    (output / "run.json").write_text(json.dumps(record))
    lines = []
    for step in range(10, int(flags["num_train_steps"]) + 10, 10):
        learnt = min(step, 100) if "amp" in flags else step
        loss = 8 - learnt / 100 + 0.01 * int(flags["seed"])
        loss += 0.001 * (flags.get("precision") == "bf16")
        lines.append({"step": step, "loss": loss})
        if flags.get("precision") == "fp16":
            lines[-1]["skipped_updates"] = 3
        print(f"step {step}/{flags['num_train_steps']}  loss {loss}", flush=True)
    (output / "log.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
    if flags["seed"] == "7":
        sys.exit("out of disk")
    (output / "eval_results.json").write_text(json.dumps({"loss": 6 + 0.1 * int(flags["seed"])}))
    with open(output.parent / "started.txt", "a") as file:
        file.write(output.name + "\\n")
""")


def curve(losses, held_out=5.0):
    return Curve(STEPS[: len(losses)], tuple(losses), held_out)


def test_smoothing_is_the_mean_of_the_last_updates():
    losses = np.random.default_rng(0).normal(size=len(STEPS))
    found = smooth(curve(losses), 50)
    assert found.steps == STEPS[4:]
    expected = [sum(losses[i - 4 : i + 1]) / 5 for i in range(4, len(STEPS))]
    np.testing.assert_allclose(found.losses, expected)
    assert smooth(curve(losses), 10) == curve(losses.tolist())


@pytest.mark.parametrize("window", [0, 15, 210])
def test_a_window_that_does_not_fit_is_told(window):
    with pytest.raises(UserError, match=f"smoothing_steps={window}: give a multiple of 10"):
        smooth(curve([1.0] * len(STEPS)), window)


def test_the_difference_of_two_curves():
    found = difference(curve([3.0, 2.0, 1.0], 4.0), curve([3.0, 2.5, 0.0], 4.25))
    assert found == pytest.approx((0.5, 1.0, 0.25))


def test_a_curve_that_is_no_number_is_infinitely_far_away():
    broken = curve([3.0, math.inf, math.inf], math.inf)
    found = difference(broken, curve([3.0, 2.0, 1.0]))
    assert found == (math.inf, math.inf, math.inf)
    assert difference(broken, broken).mean == math.inf
    smoothed = smooth(curve([1.0, math.inf, 1.0, 1.0]), 20)
    assert smoothed.losses == (math.inf, math.inf, 1.0)


def test_curves_of_other_steps_are_not_compared():
    with pytest.raises(UserError, match="logged other steps"):
        difference(curve([1.0, 2.0]), curve([1.0, 2.0, 3.0]))


def test_seeds_differ_by_the_largest_of_their_pairs():
    curves = [curve([1.0, 1.0], 5.0), curve([1.5, 1.0], 5.1), curve([1.0, 1.3], 5.0)]
    assert between_seeds(curves) == pytest.approx((0.4, 0.5, 0.1))


def test_the_verdict():
    seeds = Difference(0.1, 0.2, 0.3)
    assert excess(Difference(0.1, 0.2, 0.3), seeds) == []
    assert excess(Difference(0.05, 0.25, math.inf), seeds) == ["largest", "held_out"]
    assert excess(Difference(math.nan, 0.0, 0.0), seeds) == ["mean"]


def write_log(directory, lines):
    directory.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "log.jsonl").write_text(text)
    return Training("fp16", 1, {"num_train_steps": 40}, directory)


def test_skipped_updates_are_added_up_over_processes(tmp_path):
    counts = [2, 5, None, 1]  # the third line is the first of a process that went on
    lines = [{"step": 10 * (i + 1), "loss": 1.0} for i in range(len(counts))]
    for line, count in zip(lines, counts):
        if count is not None:
            line["skipped_updates"] = count
    assert skipped_updates(write_log(tmp_path / "run", lines)) == 6


def test_commands_differ_in_what_is_compared_only(tmp_path):
    runs = plan_trainings(["bf16-tensorflow", "fp32"], [4, 5], {"do_train": True}, tmp_path)
    assert [run.name for run in runs] == ["fp32, seed 4", "fp32, seed 5", "bf16-tensorflow, seed 4"]
    assert runs[2].command()[1:] == [
        "--do_train",
        "--precision=bf16",
        "--nonative_ops",
        "--seed=4",
        f"--output_dir={tmp_path / 'bf16-tensorflow-seed4'}",
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_run_pretraining_takes_the_flags_of_every_variant(variant, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    records = tmp_path / "part-00000.tfrecord"
    records.touch()
    given = flags.FlagValues()
    define_flags(loss_curves.FLAGS, given)
    given(["loss_curves", f"--input_file={records}", f"--eval_file={records}",
           "--bert_config_file=recipes/bert_tiny.json", f"--output_dir={tmp_path}"])  # fmt: skip
    training = plan_trainings([variant], [3], loss_curves.training_flags(given), tmp_path)[-1]
    values = flags.FlagValues()
    define_pretraining_flags(values)
    values(training.command())
    runtime = pretraining_settings(values).runtime
    name, _, how = variant.partition("-")
    assert runtime.numerics.precision == ("fp32" if name == "amp" else name)
    assert (runtime.numerics.amp, runtime.use_xla) == (name == "amp", how == "xla")
    assert runtime.native_ops is (False if how == "tensorflow" else None)
    resolved = {flag: values[flag].value for flag in training.flags}
    assert resolved == training.flags, "what run.json records must equal what was asked for"


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Calls the benchmark with trainings by the stand-in; flags are given as keywords."""
    monkeypatch.setattr(process, "ROOT", tmp_path)
    (tmp_path / "run_pretraining.py").write_text(STAND_IN)
    (tmp_path / "network.json").write_text("{}")

    def call(**given):
        values = flags.FlagValues()
        define_flags(loss_curves.FLAGS, values)
        given = {
            "input_file": "train",
            "eval_file": "heldout",
            "bert_config_file": tmp_path / "network.json",
            "output_dir": tmp_path / "curves",
            "num_train_steps": 200,
            "smoothing_steps": 50,
            **given,
        }
        values(["loss_curves", *(f"--{name}={value}" for name, value in given.items())])
        return loss_curves.measure(values)

    return call


def started(tmp_path):
    return (tmp_path / "curves" / "started.txt").read_text().split()


def test_figures_and_picture(compare, tmp_path, capsys):
    found = compare(variants="bf16,fp16", picture=tmp_path / "curves.svg", seeds="1,2")
    results = {r["name"]: r for r in found}
    assert results["loss curve, bf16, seed 1, held-out loss"]["value"] == pytest.approx(6.1)
    assert results["loss curve, fp16, seed 1, skipped updates"]["value"] == 3
    assert results["loss curve, fp32, seed 1, skipped updates"]["value"] == 0
    bf16 = results["loss curve, bf16, seed 1, largest difference from fp32"]
    assert bf16["value"] == pytest.approx(0.001)
    held_out = results["loss curve, two seeds, difference of the held-out loss"]
    assert held_out["value"] == pytest.approx(0.1)
    last = results["loss curve, fp32, seed 2, last training loss"]
    assert last["value"] == pytest.approx(8 - 1.8 + 0.02)  # of the updates 160 to 200
    assert last["config"]["curve"]["steps"] == STEPS[4:]
    picture = (tmp_path / "curves.svg").read_text()
    assert all(name in picture for name in ("fp32, seed 2", "bf16", "fp16"))
    assert "as near to float32 as another seed" in capsys.readouterr().out


def test_a_variant_that_stops_learning_is_told_after_all_results(compare):
    results = compare(variants="bf16,amp", seeds="1,2")
    given = []
    with pytest.raises(UserError, match=r"amp: mean difference 0\.\d+ nats, two seeds 0\.0100"):
        given.extend(results)
    assert any("amp, seed 1, mean difference" in row["name"] for row in given)


def test_what_is_finished_is_not_run_again(compare, tmp_path, capsys):
    list(compare(variants="bf16", seeds="1,2"))
    (tmp_path / "curves" / "fp32-seed2" / "eval_results.json").unlink()
    list(compare(variants="bf16", seeds="1,2"))
    assert started(tmp_path) == ["fp32-seed1", "fp32-seed2", "bf16-seed1", "fp32-seed2"]
    assert "bf16, seed 1: finished before" in capsys.readouterr().out


def test_a_directory_of_another_run_is_refused(compare, tmp_path):
    list(compare(variants="bf16", seeds="1,2"))
    with pytest.raises(
        UserError, match="holds a run with --num_train_steps=200 and not 100; remove"
    ):
        list(compare(variants="bf16", seeds="1,2", num_train_steps=100))


def test_a_training_that_fails_is_told_with_its_output(compare, tmp_path):
    with pytest.raises(UserError, match=r"fp32, seed 7 ended with status 1; .*fp32-seed7.txt says"):
        list(compare(variants="bf16", seeds="7,1"))
    assert "out of disk" in (tmp_path / "curves" / "fp32-seed7.txt").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"variants": "bf16,fp8"}, "--variants: 'fp8' is none of fp32, bf16"),
        ({"seeds": "1"}, "--seeds: give two at least"),
        ({"seeds": "1,x"}, "--seeds=1,x: give whole numbers"),
        (
            {"num_train_steps": 195},
            "--num_train_steps=195 is not a multiple of --display",
        ),
        ({"smoothing_steps": 300}, "--smoothing_steps=300: give a multiple of 10, .* up to 200"),
        ({"bert_config_file": "none.json"}, "--bert_config_file: none.json does not exist"),
    ],
)
def test_bad_flags(compare, given, message, tmp_path):
    with pytest.raises(UserError, match=message):
        list(compare(**given))
    assert not (tmp_path / "curves" / "started.txt").exists()


def test_a_picture_without_matplotlib_is_refused_at_once(compare, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="--picture needs matplotlib"):
        list(compare(picture=tmp_path / "curves.svg"))
    assert not (tmp_path / "curves").exists()
