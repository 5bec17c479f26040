"""Trainings that are compared: what each is told, when it is run again, and what is made of it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

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
from benchmarks.loss_curves_runs import VARIANTS, plan_trainings
from benchmarks.script import define_flags
from benchmarks.sentence_bounds import Score, read_paragraphs, score
from benchmarks.speed import process
from benchmarks.studies import large_batch
from benchmarks.studies.large_batch_runs import OPTIMIZERS, Plan, best_rate, compared
from benchmarks.to_loss import curves, ours, trainings
from benchmarks.to_loss.contenders import CONTENDERS, contender
from benchmarks.to_loss.trainings import TrainingJob, run_updates
from bert_tf.model.config import BertConfig
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT

STEPS = tuple(range(10, 210, 10))
# What run_pretraining.py leaves behind. bf16 learns as float32 does, fp16 nothing after a while.
STAND_IN = """
import json, pathlib, sys
flags = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
output = pathlib.Path(flags["output_dir"])
output.mkdir(exist_ok=True)
resolved = {n: json.loads(t) if t[:1].isdigit() else t or True for n, t in flags.items()}
(output / "run.json").write_text(json.dumps({"flags": resolved, "git_commit": "abc"}))
lines = []
for step in range(10, int(flags["num_train_steps"]) + 10, 10):
    learnt = min(step, 100) if flags.get("precision") == "fp16" else step
    loss = 8 - learnt / 100 + 0.01 * int(flags["seed"])
    loss += 0.001 * (flags.get("precision") == "bf16")
    lines.append({"step": step, "loss": loss, "skipped_updates": 3})
(output / "log.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
if flags["seed"] == "7":
    sys.exit("out of disk")
(output / "eval_results.json").write_text(json.dumps({"loss": 6 + 0.1 * int(flags["seed"])}))
with open(output.parent / "started.txt", "a") as file:
    file.write(output.name + "\\n")
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Calls loss_curves with trainings by the stand-in; flags are given as keywords."""
    monkeypatch.setattr(process, "ROOT", tmp_path)
    (tmp_path / "run_pretraining.py").write_text(STAND_IN)
    (tmp_path / "network.json").write_text("{}")
    usual = {"input_file": "train", "eval_file": "heldout", "num_train_steps": 200,
             "bert_config_file": tmp_path / "network.json", "output_dir": tmp_path / "curves",
             "smoothing_steps": 50, "variants": "bf16", "seeds": "1,2"}  # fmt: skip

    def call(**given):
        values = flags.FlagValues()
        define_flags(loss_curves.FLAGS, values)
        values(["loss_curves", *(f"--{n}={v}" for n, v in {**usual, **given}.items())])
        return loss_curves.measure(values)

    return call


def test_figures_of_loss_curves(compare, capsys):
    results = {r["name"].removeprefix("loss curve, "): r for r in compare()}
    figures = {name: result["value"] for name, result in results.items()}
    assert figures["bf16, seed 1, held-out loss"] == pytest.approx(6.1)
    assert figures["bf16, seed 1, skipped updates"] == 3
    assert figures["bf16, seed 1, largest difference from fp32"] == pytest.approx(0.001)
    assert figures["two seeds, difference of the held-out loss"] == pytest.approx(0.1)
    last = results["fp32, seed 2, last training loss"]
    assert last["value"] == pytest.approx(8 - 1.8 + 0.02)  # of the updates 160 to 200
    assert last["config"]["curve"]["steps"] == STEPS[4:]
    assert "as near to float32 as another seed" in capsys.readouterr().out


def test_a_variant_that_stops_learning_is_told_after_all_results(compare):
    given = []
    with pytest.raises(UserError, match=r"fp16: mean difference 0\.\d+ nats, two seeds 0\.0100"):
        given.extend(compare(variants="bf16,fp16"))
    assert any("fp16, seed 1, mean difference" in row["name"] for row in given)


def test_what_is_finished_is_not_run_again(compare, tmp_path, capsys):
    list(compare())
    (tmp_path / "curves" / "fp32-seed2" / "eval_results.json").unlink()
    list(compare())
    started = (tmp_path / "curves" / "started.txt").read_text().split()
    assert started == ["fp32-seed1", "fp32-seed2", "bf16-seed1", "fp32-seed2"]
    assert "bf16, seed 1: finished before" in capsys.readouterr().out
    with pytest.raises(UserError, match="a run with --num_train_steps=200 and not 100; remove"):
        list(compare(num_train_steps=100))
    with pytest.raises(
        UserError,
        match=r"fp32, seed 7 ended with status 1; .*fp32-seed7.txt. Start again to resume",
    ):
        list(compare(seeds="7,1"))
    assert "out of disk" in (tmp_path / "curves" / "fp32-seed7.txt").read_text()


def curve(losses, held_out=5.0):
    return Curve(STEPS[: len(losses)], tuple(losses), held_out)


def test_arithmetic_of_loss_curves():
    losses = np.random.default_rng(0).normal(size=len(STEPS))
    found = smooth(curve(losses), 50)
    assert found.steps == STEPS[4:]
    np.testing.assert_allclose(found.losses, np.convolve(losses, np.ones(5) / 5, "valid"))
    found = difference(curve([3.0, 2.0, 1.0], 4.0), curve([3.0, 2.5, 0.0], 4.25))
    assert found == pytest.approx((0.5, 1.0, 0.25))
    broken = curve([3.0, math.inf, math.inf], math.inf)
    assert difference(broken, broken).mean == math.inf
    assert smooth(curve([1.0, math.inf, 1.0, 1.0]), 20).losses == (math.inf, math.inf, 1.0)
    with pytest.raises(UserError, match="logged different steps"):
        difference(curve([1.0, 2.0]), curve([1.0, 2.0, 3.0]))
    of_seeds = [curve([1.0, 1.0], 5.0), curve([1.5, 1.0], 5.1), curve([1.0, 1.3], 5.0)]
    assert between_seeds(of_seeds) == pytest.approx((0.4, 0.5, 0.1))
    seeds = Difference(0.1, 0.2, 0.3)
    assert excess(seeds, seeds) == []
    assert excess(Difference(0.05, 0.25, math.inf), seeds) == ["largest", "held_out"]
    assert excess(Difference(math.nan, 0.0, 0.0), seeds) == ["mean"]


def of_loss_curves(variant, given):
    program = loss_curves.training_flags
    return plan_trainings([variant], [3], program(given), Path(given.output_dir))[-1]


def of_large_batch(optimizer, given):
    return large_batch.plan_from_flags(given).training(optimizer, 32, 0.25, 3)


@pytest.mark.parametrize(
    ("table", "training", "choice"),
    [
        *((loss_curves.FLAGS, of_loss_curves, variant) for variant in VARIANTS),
        *((large_batch.FLAGS, of_large_batch, optimizer) for optimizer in OPTIMIZERS),
    ],
)
def test_run_pretraining_takes_the_flags(table, training, choice, record_maker, tmp_path):
    records = record_maker.write(tmp_path / "records" / "a.tfrecord", 4, masked=True)
    record_maker.write_manifest(records.parent)
    given = flags.FlagValues()
    define_flags(table, given)
    words = [f"--input_file={records}", f"--eval_file={records}", f"--output_dir={tmp_path}"]
    if "bert_config_file" in given:
        words.append(f"--bert_config_file={ROOT / 'recipes/bert_tiny.json'}")
    given(["program", *words])
    planned = training(choice, given)
    values = flags.FlagValues()
    define_pretraining_flags(values)
    values(planned.command())
    pretraining_settings(values)
    resolved = {flag: values[flag].value for flag in planned.flags}
    assert resolved == planned.flags, "what run.json records must equal what was asked for"


def plan(tmp_path, **changed):
    sizes = {"batch_size": 4, "micro_batch_size": 8, "num_sequences": 64, "warmup_sequences": 6}
    return Plan(flags={"do_train": True}, output_dir=tmp_path, **{**sizes, **changed})


def test_large_batches_see_as_many_sequences_with_scaled_rates(tmp_path):
    names = ("train_batch_size", "global_batch_size", "num_train_steps", "num_warmup_steps")
    for factor, expected in ((1, [4, 4, 16, 2]), (2, [8, 8, 8, 1]), (16, [8, 64, 1, 1])):
        found = plan(tmp_path).training("adam", factor, 0.5, 3).flags
        assert [found[name] for name in names] == expected
    found = compared(plan(tmp_path), {"adam": 0.5}, ["none", "sqrt", "linear"], [1, 4], [1])
    rates = {key[1:]: [t.flags["learning_rate"] for t in trained] for key, trained in found.items()}
    assert rates == {
        ("none", 1): [0.5], ("none", 4): [0.5], ("sqrt", 1): [0.5], ("sqrt", 4): [1.0],
        ("linear", 1): [0.5], ("linear", 4): [2.0],
    }  # fmt: skip
    with pytest.raises(UserError, match="--num_sequences=64 is not a multiple of 12, the 3-fold"):
        plan(tmp_path).check([1, 3])
    trained = {rate: plan(tmp_path).training("adam", 1, rate, 3) for rate in (0.1, 0.2)}
    for training, loss in zip(trained.values(), (4.0, 5.0)):
        training.directory.mkdir()
        (training.directory / "eval_results.json").write_text(json.dumps({"masked_lm_loss": loss}))
    with pytest.raises(UserError, match=r"0\.1 is the best of them, and the lowest; add a lower"):
        best_rate("adam", trained)


def to_loss(*losses, seconds=10.0):
    count = len(losses)
    times = tuple(seconds * (number + 1) / count for number in range(count))
    return curves.Curve(tuple(range(1, count + 1)), times, losses, seconds, 1.0)


JOB = TrainingJob(
    network=BertConfig(vocab_size=100, hidden_size=16, num_attention_heads=2),
    seq_length=32, predictions=5, data={"packed": "records"}, seed=3, threads=1, updates=10,
    checkpoints=3, directory="runs",
)  # fmt: skip


def test_when_a_loss_is_reached_and_which_peer_is_best():
    one = to_loss(9.0, 7.0, 8.0, 5.0)
    assert [one.seconds_to(loss) for loss in (9.5, 7.0, 6.0, 4.9)] == [2.5, 5.0, 10.0, None]
    mine = {1: to_loss(7.0, 5.0, seconds=4.0), 2: to_loss(7.0, 6.5, seconds=4.0), 4: to_loss(1.0)}
    peer = {1: to_loss(8.0, 7.0, seconds=8.0), 2: to_loss(8.0, 6.0, seconds=8.0)}
    found = curves.compare(mine, peer)
    assert found == {1: (7.0, 8.0, 2.0), 2: (6.0, 8.0, None)}
    assert (found[1].share, found[2].share) == (0.25, math.inf)
    lucky = {1: to_loss(1.0), 2: to_loss(9.0), 3: to_loss(9.0)}
    steady = {1: to_loss(5.0), 2: to_loss(5.0), 3: to_loss(8.0)}
    assert curves.best_peer({"lucky": lucky, "steady": steady}) == "steady", "by the median"


def test_start_up_and_saving_take_no_time():
    now, saved = [100.0], []

    def update():
        now[0] += 1
        return now[0]

    def save(number):
        saved.append(number)
        now[0] += 50

    found = run_updates(JOB, update, save, started=90.0, clock=lambda: now[0])
    assert saved == [4, 8, 10]
    assert found["start_seconds"] == 11.0
    assert [point[:2] for point in found["points"]] == [[4, 3.0], [8, 7.0], [10, 9.0]]
    assert found["points"][0][2] == np.mean([101, 102, 103, 104])
    assert [trainings.spacing(*given) for given in ((9, 3), (2, 9))] == [3, 1]
    short = dataclasses.replace(JOB, stop_after=4, checkpoints=0)
    found = run_updates(short, lambda: 1.0, saved.append, started=0, clock=lambda: 1.0)
    assert (saved[3:], [point[0] for point in found["points"]]) == ([], [4])


def test_a_contenders_settings_become_flags_and_its_log_seconds():
    given = {"records": "packed", "warmup_share": 0.2, "learning_rate": 1e-3, "seed": 9}
    found = ours.training_flags(JOB, {**given, "flagfile": "recipe.flags"})
    assert next(iter(found)) == "flagfile"  # what follows a flag file overrides it
    assert found["input_file"] == "records"
    names = ("num_train_steps", "num_warmup_steps", "save_checkpoints_steps", "learning_rate")
    assert [found[name] for name in names] == [10, 2, 4, 1e-3]
    log = [
        {"step": 11, "sequences_per_second": 40.0, "loss": 6.0, "masked_lm_loss": 5.5},
        {"step": 21, "sequences_per_second": 80.0, "loss": 5.0},
        {"step": 31, "sequences_per_second": 80.0, "loss": 5.0, "global_batch": 16},
    ]
    assert ours.points_of_log(log, 8) == [[11, 2.0, 5.5], [21, 3.0, 5.0], [31, 5.0, 5.0]]
    known = CONTENDERS["google-bert"].settings
    found = contender("google-bert:learning_rate=1e-3:batch_size=64:amp=false").settings
    assert found == {**known, "learning_rate": 1e-3, "batch_size": 64, "amp": False}


def test_bounds_of_sentences(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("# newdoc id = a\n# text = Eine Überschrift\n1\tEine\t_\n"
                    "# text = Es war im 19. Jahrhundert.\n# text = 2014 kam er.\n# newpar\n"
                    "# text = Dann ging er.\n" + "# text = Ja.\n" * 12)  # fmt: skip
    assert [len(paragraph) for paragraph in read_paragraphs(path)] == [0, 1, 2, 10, 3]
    found = score([["A b.", "C d.", "E."]], lambda text: ["A b. C ", " d. ", "E."])
    assert found == Score(marked=2, found=2, right=1)
    assert (found.precision, found.recall, found.f1) == (0.5, 0.5, 0.5)
