"""The curve of a run that is only planned, against the run's own figures."""

import importlib.util

import numpy as np
import pytest
from absl import flags

from bert_tf.commands import draw_schedule
from bert_tf.commands.draw_schedule import script_of
from bert_tf.config.ramps import parse_length_ramp, parse_ramp
from bert_tf.tasks.pretraining.schedule_curve import planned_curve, short_table, write_curve
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, run
from tests.helpers.settings import optimization_settings

RECIPES = ROOT / "recipes"
SETTINGS = {
    "micro_batch_size": 4,
    "accumulation_steps": 2,
    "learning_rate": 1.0,
}


def curve_of(*, num_ranks=1, scaled=False, num_records=None, **changes):
    lengths = {"num_train_steps": 100, "num_warmup_steps": 10}
    return planned_curve(
        optimization_settings(**{**SETTINGS, **lengths, **changes}),
        num_ranks=num_ranks,
        scaled=scaled,
        num_records=num_records,
    )


def test_updates_sequences_and_rates():
    points = curve_of().points()
    assert [point.update for point in points] == list(range(1, 101))
    assert points[0] == (1, 8, 0.1, 8, None)  # the first update is that of step 0
    assert points[9][:3] == (10, 80, 1.0)
    assert points[54][:3] == (55, 440, pytest.approx(0.5 + 0.5 / 45))
    assert points[-1][:3] == (100, 800, pytest.approx(1 / 90))


def test_ramps_of_batches_and_lengths():
    ramps = {
        "batch_ramp": parse_ramp("4:0,8:30", flag="batch_ramp"),
        "length_ramp": parse_length_ramp("16+16:20", flag="length_ramp", max_seq_length=64),
    }
    curve = curve_of(**ramps)
    points = curve.points()
    assert [point.global_batch for point in points] == [4] * 30 + [8] * 70
    lengths = [16] * 7 + [32] * 7 + [48] * 6 + [64] * 80
    assert [point.sequence_length for point in points] == lengths
    consumed = np.cumsum([point.global_batch for point in points])
    assert [point.sequences for point in points] == consumed.tolist()
    assert curve.title().endswith("100 updates of 4 to 8 sequences of 16 to 64 positions")
    lines = short_table(curve).splitlines()
    assert lines[0].split()[3:] == ["global_batch", "sequence_length"]
    # The first and the last update of every stage.
    shown = {int(line.split()[0]) for line in lines[1:]}
    assert {1, 7, 8, 14, 15, 20, 21, 30, 31, 100} < shown
    # Too many stages for a short table; on two ranks in half as many updates.
    many = parse_ramp("8+8:100", flag="batch_ramp")
    curve = curve_of(
        num_ranks=2, scaled=True, num_train_steps=200, global_batch_size=800,
        micro_batch_size=4, accumulation_steps=None, batch_ramp=many,
    )  # fmt: skip
    assert len(curve.points(10)) < 20
    assert curve.points()[49].global_batch == 784
    assert curve.points()[50].global_batch == 800


def test_ends_of_phases_are_among_few_points():
    curve = curve_of(num_train_steps=100_000, rewarm_at_step=61_234, num_rewarm_steps=77)
    updates = [point.update for point in curve.points(10)]
    assert {1, 10, 11, 61_234, 61_235, 61_311, 61_312, 100_000} < set(updates)
    assert {10_000, 20_000, 90_000} < set(updates)
    assert len(updates) <= 18
    assert len(curve.points()) < 2100


@pytest.mark.parametrize("scaled", [False, True])
def test_ranks_and_epochs(scaled):
    curve = curve_of(
        num_ranks=4,
        scaled=scaled,
        num_train_steps=None,
        num_warmup_steps=None,
        num_train_epochs=3.0,
        warmup_proportion=0.25,
        num_records=640,
    )
    # 3 x 640 sequences in batches of 32, however the steps are counted.
    assert curve.batch.global_batch_size == 32
    assert curve.points()[-1][:2] == (60, 1920)
    rates = [point.learning_rate for point in curve.points()]
    assert max(rates) == rates[14] == 1.0


def test_epochs_without_records():
    with pytest.raises(UserError, match=r"--num_train_epochs=2 depends on .*--num_records"):
        curve_of(num_train_steps=None, num_train_epochs=2.0, warmup_proportion=0.1)


def test_what_does_not_fit_is_refused_as_by_the_run():
    with pytest.raises(UserError, match=r"must be from 1 to half of --num_train_steps=100"):
        curve_of(schedule="one_cycle", num_warmup_steps=60)


def test_a_short_table_and_a_title():
    curve = curve_of(schedule="warmup_stable_decay", decay_share=0.25, rewarm_at_step=None)
    lines = short_table(curve).splitlines()
    assert lines[0].split() == ["update", "sequences", "learning_rate"]
    assert lines[-1].split() == ["100", "800", "0.04"]
    assert len({len(line) for line in lines}) == 1
    assert curve.title() == (
        "warmup_stable_decay, peak 1, decay_share 0.25: 100 updates of 8 sequences"
    )


def test_a_table_instead_of_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    curve = curve_of()
    path = write_curve(tmp_path / "curve.png", curve)
    assert path == tmp_path / "curve.tsv"
    assert list(tmp_path.iterdir()) == [path]
    heading, *rows = path.read_text().splitlines()
    assert heading == "update\tsequences\tlearning_rate"
    found = [(int(u), int(s), float(r)) for u, s, r in (row.split("\t") for row in rows)]
    assert found == [point[:3] for point in curve.points()]


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_picture(suffix, begin, tmp_path):
    pytest.importorskip("matplotlib")
    ramp = parse_ramp("4:0,8:30", flag="batch_ramp")
    path = write_curve(tmp_path / f"curve{suffix}", curve_of(schedule="cosine", batch_ramp=ramp))
    assert path.read_bytes().startswith(begin)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.flags")), ids=lambda path: path.name)
def test_every_recipe_belongs_to_a_script(path):
    scripts = {"distilbert.flags": "run_distillation.py"}
    scripts |= dict.fromkeys(("nvidia_compatible_squad.flags", "squad_large.flags"), "run_squad.py")
    expected = scripts.get(path.name, "run_pretraining.py")
    given = [f"--flagfile={path}", "--num_records=9", "--output", "x.png"]
    assert script_of(given) == expected
    assert script_of([*given, "--script=run_classifier.py"]) == "run_classifier.py"


def test_scripts_of_flags():
    assert script_of([]) == "run_pretraining.py"
    assert script_of(["--task_name", "MRPC", "--nolength_buckets"]) == "run_classifier.py"
    assert script_of(["--lr_shedule=cosine", "--train_file=x"]) == "run_squad.py"
    # Wrong values are reported when all flags are parsed.
    assert script_of(["--script=run_ner"]) == "run_pretraining.py"
    with pytest.raises(UserError, match=r"--flagfile: .*missing.flags cannot be read"):
        script_of(["--flagfile=missing.flags"])


@pytest.fixture
def command(monkeypatch):
    """Runs the command's main in this process, where TensorFlow is loaded."""

    def call(script, *given):
        values = flags.FlagValues()
        monkeypatch.setattr(flags, "FLAGS", values)
        monkeypatch.setattr(draw_schedule.environment, "prepare_environment", lambda **_: None)
        draw_schedule.define_flags(script)
        values(["draw_schedule", *given])
        draw_schedule.main([])

    return call


def test_what_is_printed(command, tmp_path, capsys):
    given = ["--num_records=1000", "--train_batch_size=10", "--num_ranks=2", "--do_train"]
    path = tmp_path / "new" / "curve.tsv"
    command("run_squad.py", *given, "--num_train_epochs=2", f"--output={path}")
    out = capsys.readouterr().out
    assert "run_squad.py: polynomial, peak 5e-05: 100 updates of 20 sequences\n" in out
    assert f"\n   100      2,000      5.556e-07\noutput is in {path}\n" in out
    assert len(path.read_text().splitlines()) == 101


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--output=curve.jpg"], r"--output=curve.jpg must end in one of .png, .svg, .pdf, .tsv"),
        (["--output=/"], r"--output: / is a directory"),
        (["--num_ranks=0"], r"--num_ranks=0 must be at least 1"),
        (["--num_records=0"], r"--num_records=0 must be at least 1"),
        (["--num_train_epochs=-1"], r"--num_train_epochs=-1 must be greater than 0"),
        (["--warmup_proportion=2"], r"--warmup_proportion=2 must be in \[0, 1\]"),
        (["--lr_decay_share=0.2"], r"--lr_decay_share=0.2 belongs to"),
    ],
)
@pytest.mark.parametrize("script", ["run_pretraining.py", "run_classifier.py"])
def test_wrong_flags(command, script, given, sentence):
    with pytest.raises(UserError, match=sentence):
        command(script, *given)


def test_the_program(tmp_path):
    name = "bert_tf.commands.draw_schedule"
    recipe = f"--flagfile={RECIPES / 'bert_large_lamb_phase1.flags'}"
    done = run("-m", name, recipe, cwd=tmp_path)
    assert "7,038 updates of 65,536 sequences" in done.stdout
    done = run("-m", name, recipe, "--lr_shedule=x", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "did you mean --lr_schedule?" in done.stderr
    assert not list(tmp_path.iterdir())
