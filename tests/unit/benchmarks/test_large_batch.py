"""Large batches: their plan, the choice of rates, table and picture; trainings by a stand-in."""

import math
import textwrap

import pytest
from absl import flags

from benchmarks.script import define_flags
from benchmarks.speed import process
from benchmarks.studies import large_batch
from benchmarks.studies.large_batch_runs import OPTIMIZERS, Plan, Setting, compared, seed_by_seed
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT

# What run_pretraining.py leaves behind. The loss is least at a rate of 0.01 times the root of the
# batch's factor, and higher with fewer updates; a rate over 0.5 ends at a loss that is no number,
# one over 0.2 stops the training.
STAND_IN = textwrap.dedent("""
    import json, math, pathlib, sys
    flags = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
    output = pathlib.Path(flags["output_dir"])
    output.mkdir(exist_ok=True)
    resolved = {}
    for name, text in flags.items():
        try:
            resolved[name] = json.loads(text or "true")
        except ValueError:
            resolved[name] = text
        if name[:2] == "no" and not text:
            resolved[name[2:]] = False
    record = {"flags": resolved, "git_commit": "abc"}
    (output / "run.json").write_text(json.dumps(record))
    with open(output.parent / "started.txt", "a") as file:
        file.write(output.name + "\\n")
    steps, rate = int(flags["num_train_steps"]), float(flags["learning_rate"])
    if flags["seed"] == "7":
        sys.exit("out of disk")
    if 0.2 < rate < 0.5:
        (output / "nonfinite_3").mkdir()
        sys.exit("a gradient was not finite")
    (output / "log.jsonl").write_text(json.dumps({"step": steps, "loss": 5.0}) + "\\n")
    factor = int(flags["global_batch_size"]) / 4
    loss = 5 + 1 / steps + abs(math.log2(rate / (0.01 * math.sqrt(factor))))
    loss += 0.001 * int(flags["seed"])
    found = {"masked_lm_loss": None if rate > 0.5 else loss, "loss": 9.0}
    (output / "eval_results.json").write_text(json.dumps(found))
""")
GIVEN = {
    "batch_size": 4,
    "micro_batch_size": 8,
    "num_sequences": 64,
    "num_warmup_sequences": 6,
    "factors": "1,2,16",
    "seeds": "1,5",
    "optimizers": "lamb",
    "lamb_learning_rates": "0.005,0.01,0.02",
}


def plan(tmp_path, **changed):
    sizes = {"batch_size": 4, "micro_batch_size": 8, "num_sequences": 64, "warmup_sequences": 6}
    return Plan(flags={"do_train": True}, output_dir=tmp_path, **{**sizes, **changed})


@pytest.mark.parametrize(
    ("factor", "micro", "steps", "warmup"), [(1, 4, 16, 2), (2, 8, 8, 1), (16, 8, 1, 1)]
)
def test_every_batch_sees_as_many_sequences(factor, micro, steps, warmup, tmp_path):
    found = plan(tmp_path).training("adam", factor, 0.5, 3).flags
    names = ("train_batch_size", "global_batch_size", "num_train_steps", "num_warmup_steps")
    assert [found[name] for name in names] == [micro, 4 * factor, steps, warmup]
    assert (found["learning_rate"], found["seed"], found["optimizer_type"]) == (0.5, 3, "adam")
    assert found["do_train"]


def test_no_warm_up_stays_none(tmp_path):
    assert (
        plan(tmp_path, warmup_sequences=0).training("adam", 1, 0.5, 3).flags["num_warmup_steps"]
        == 0
    )


@pytest.mark.parametrize(
    ("changed", "factors", "message"),
    [
        ({}, [1, 3], "--num_sequences=64 is not a multiple of 12, the 3-fold batch"),
        ({"micro_batch_size": 6}, [1, 4], "4-fold batch of 16 .* --micro_batch_size=6"),
    ],
)
def test_batches_that_do_not_fit_are_refused(changed, factors, message, tmp_path):
    with pytest.raises(UserError, match=message):
        plan(tmp_path, **changed).check(factors)


def test_scalings(tmp_path):
    found = compared(plan(tmp_path), {"adam": 0.5}, ["none", "sqrt", "linear"], [1, 4], [1, 2])
    rates = {key: [t.flags["learning_rate"] for t in trained] for key, trained in found.items()}
    assert rates == {
        Setting("adam", "none", 1): [0.5, 0.5],
        Setting("adam", "none", 4): [0.5, 0.5],
        Setting("adam", "sqrt", 1): [0.5, 0.5],
        Setting("adam", "sqrt", 4): [1.0, 1.0],
        Setting("adam", "linear", 1): [0.5, 0.5],
        Setting("adam", "linear", 4): [2.0, 2.0],
    }
    once = list(seed_by_seed(found))
    assert [t.seed for t in once] == [1] * 4 + [2] * 4  # scalings share the small batch
    assert len({t.directory for t in once}) == 8


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_run_pretraining_takes_the_flags_of_every_optimizer(
    optimizer, records, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    given = flags.FlagValues()
    define_flags(large_batch.FLAGS, given)
    given(
        [
            "large_batch",
            f"--input_file={records}",
            f"--eval_file={records}",
            f"--output_dir={tmp_path}",
        ]
    )
    training = large_batch.plan_from_flags(given).training(optimizer, 32, 0.25, 3)
    values = flags.FlagValues()
    define_pretraining_flags(values)
    values(training.command())
    settings = pretraining_settings(values)
    assert settings.network == {
        **large_batch.NETWORK,
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
    }
    assert settings.optimization.optimizer == {"nvlamb": "lamb"}.get(optimizer, optimizer)
    assert (values.train_batch_size, values.global_batch_size, values.num_train_steps) == (
        64,
        256,
        128,
    )
    resolved = {flag: values[flag].value for flag in training.flags}
    assert resolved == training.flags, "what run.json records must equal what was asked for"


@pytest.fixture(scope="module")
def records(tmp_path_factory, record_maker):
    """A file of records with masks."""
    return record_maker.write(tmp_path_factory.mktemp("records") / "masked.tfrecord", 4)


@pytest.fixture
def compare(tmp_path, monkeypatch, records):
    """Calls the benchmark with trainings by the stand-in; flags are given as keywords."""
    monkeypatch.setattr(process, "ROOT", tmp_path)
    (tmp_path / "run_pretraining.py").write_text(STAND_IN)

    def call(**given):
        values = flags.FlagValues()
        define_flags(large_batch.FLAGS, values)
        files = {"input_file": records, "eval_file": records, "output_dir": tmp_path / "batches"}
        words = [f"--{name}={value}" for name, value in {**files, **GIVEN, **given}.items()]
        values(["large_batch", *words])
        return large_batch.measure(values)

    return call


def started(tmp_path):
    return (tmp_path / "batches" / "started.txt").read_text().split()


def test_figures_table_and_picture(compare, tmp_path, capsys):
    found = {r["name"]: r for r in compare(picture=tmp_path / "losses.svg")}
    assert found["large batch, lamb, 1x, rate 0.02"]["value"] == pytest.approx(6 + 1 / 16 + 0.001)
    sqrt = found["large batch, lamb, sqrt, 2x"]
    assert sqrt["value"] == pytest.approx(5 + 1 / 8 + 0.003)
    assert sqrt["config"]["losses"] == pytest.approx([5.126, 5.13])
    assert sqrt["config"]["seeds"] == [1, 5]
    assert sqrt["config"]["flags"]["learning_rate"] == pytest.approx(0.01 * math.sqrt(2))
    assert found["large batch, lamb, none, 16x"]["value"] == pytest.approx(8 + 0.003)
    small = [found[f"large batch, lamb, {name}, 1x"]["value"] for name in ("none", "linear")]
    assert small == pytest.approx([5 + 1 / 16 + 0.003] * 2)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["batch", "4", "8", "64"] in lines
    assert ["lamb", "sqrt", "5.066", "0.002", "5.128", "0.002", "6.003", "0.002"] in lines
    picture = (tmp_path / "losses.svg").read_text()
    assert all(word in picture for word in ("lamb, linear", "held-out loss", "64"))


@pytest.mark.parametrize("base", [0.02, 0.04])  # linear at 16x: stopped, or no number at the end
def test_a_training_that_diverges_is_a_result(compare, base, capsys, tmp_path):
    given = {"lamb_learning_rates": base, "picture": tmp_path / "losses.svg"}
    for _ in range(2):
        found = {r["name"]: r["value"] for r in compare(**given)}
        assert found["large batch, lamb, linear, 16x"] == math.inf
        assert math.isfinite(found["large batch, lamb, sqrt, 16x"])
        (line,) = [li for li in capsys.readouterr().out.splitlines() if "linear  " in li]
        assert line.endswith(" diverged")
    assert len(started(tmp_path)) == len(set(started(tmp_path))), "what diverged is not run again"


def test_what_is_finished_is_not_run_again(compare, tmp_path, capsys):
    list(compare())
    once = started(tmp_path)
    assert len(once) == len(set(once)) == 3 + 2 * 7 - 1
    (tmp_path / "batches" / "lamb-16x-0.04-seed5" / "eval_results.json").unlink()
    capsys.readouterr()
    list(compare())
    assert started(tmp_path) == [*once, "lamb-16x-0.04-seed5"]
    assert "1 of 1 trainings, 0s left" in capsys.readouterr().out


def test_a_training_that_fails_is_told_with_its_output(compare):
    with pytest.raises(
        UserError, match=r"lamb-1x-0.005, seed 7 ended with status 1; .*seed7.txt says"
    ):
        list(compare(seeds="7"))


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("0.01,0.02", "0.01 is the best of them, and the lowest; add a lower one"),
        ("0.005,0.01", "0.01 is the best of them, and the highest; add a higher one"),
    ],
)
def test_the_best_rate_must_lie_inside(compare, rates, message, tmp_path):
    results = compare(lamb_learning_rates=rates)
    given = []
    with pytest.raises(UserError, match=f"--lamb_learning_rates: {message}"):
        given.extend(results)
    assert len(given) == 2
    assert all("-1x-" in name for name in started(tmp_path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizers": "lamb,sgd"}, "--optimizers: 'sgd' is none of adam, lamb"),
        ({"scalings": "cubic"}, "--scalings: 'cubic' is none of none, sqrt, linear"),
        ({"seeds": "1,x"}, "--seeds=1,x: give whole numbers"),
        ({"factors": "0,2"}, "--factors=0,2: give whole numbers from 1 on"),
        ({"factors": "3"}, "--num_sequences=64 is not a multiple of 12"),
        ({"lamb_learning_rates": "0.1,fast"}, "--lamb_learning_rates=0.1,fast: give numbers"),
        ({"lamb_learning_rates": "0.1,nan"}, "--lamb_learning_rates=0.1,nan: give numbers"),
        ({"bert_config_file": "none.json"}, "--bert_config_file: none.json does not exist"),
    ],
)
def test_bad_flags(compare, given, message, tmp_path):
    with pytest.raises(UserError, match=message):
        list(compare(**given))
    assert not (tmp_path / "batches").exists()


def test_held_out_records_without_masks_are_refused(compare, record_maker, tmp_path):
    path = record_maker.write(tmp_path / "unmasked" / "a.tfrecord", 4, masked=False)
    record_maker.write_manifest(path.parent)
    with pytest.raises(UserError, match=r"--eval_file: the records in .* store no masks"):
        list(compare(eval_file=path))
    assert not (tmp_path / "batches").exists()


def test_a_picture_without_matplotlib_is_refused_at_once(compare, tmp_path, monkeypatch):
    monkeypatch.setattr(large_batch, "can_draw", lambda: False)
    with pytest.raises(UserError, match="--picture needs matplotlib"):
        list(compare(picture=tmp_path / "losses.svg"))
    assert not (tmp_path / "batches").exists()
