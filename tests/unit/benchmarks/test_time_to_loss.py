"""When a loss is reached, which peer is the best, and what each program is told."""

import dataclasses
import json
import math

import numpy as np
import pytest
from absl import flags

from benchmarks import time_to_loss
from benchmarks.script import define_flags
from benchmarks.to_loss import curves, data, ours, trainings
from benchmarks.to_loss.contenders import CONTENDERS, contender
from benchmarks.to_loss.curves import Curve
from benchmarks.to_loss.trainings import TrainingJob, run_updates
from bert_tf.model.config import BertConfig
from bert_tf.util.errors import UserError

TINY = BertConfig(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)


def curve(*losses, seconds=10.0):
    count = len(losses)
    times = tuple(seconds * (number + 1) / count for number in range(count))
    return Curve(tuple(range(1, count + 1)), times, losses, seconds, 1.0)


def job(directory="runs", **changes):
    given = {
        "network": TINY,
        "seq_length": 32,
        "predictions": 5,
        "data": {"packed": "records"},
        "seed": 3,
    }
    given.update(threads=1, updates=10, checkpoints=3, **changes)
    return TrainingJob(directory=str(directory), **given)


def test_a_loss_is_reached_at_the_first_checkpoint_with_it():
    one = curve(9.0, 7.0, 8.0, 5.0)
    assert one.end == 5.0
    assert one.seconds_to(9.5) == 2.5
    assert one.seconds_to(7.0) == 5.0
    assert one.seconds_to(6.0) == 10.0
    assert one.seconds_to(4.9) is None


def test_ours_is_compared_seed_by_seed():
    ours_of = {1: curve(7.0, 5.0, seconds=4.0), 2: curve(7.0, 6.5, seconds=4.0), 4: curve(1.0)}
    peer = {1: curve(8.0, 7.0, seconds=8.0), 2: curve(8.0, 6.0, seconds=8.0)}
    found = curves.compare(ours_of, peer)
    assert found[1] == (7.0, 8.0, 2.0)
    assert found[1].share == 0.25
    assert found[2] == (6.0, 8.0, None)
    assert math.isinf(found[2].share)
    assert set(found) == {1, 2}


def test_the_best_peer_has_the_lowest_median():
    lucky = {1: curve(1.0), 2: curve(9.0), 3: curve(9.0)}
    steady = {1: curve(5.0), 2: curve(5.0), 3: curve(8.0)}
    assert curves.best_peer({"lucky": lucky, "steady": steady}) == "steady"
    assert curves.best_peer({}) is None


def test_a_table_has_a_line_for_each_contender():
    heads, line = curves.table({"ours": {1: curve(7.0, 5.0), 2: curve(7.0, 6.0)}})
    assert line.split() == [
        "ours", "2", "2", "10.0", "10.0", "1.0", "5.5000", "5.0000", "to", "6.0000"
    ]  # fmt: skip
    assert "loss at end" in heads


def test_a_picture_is_the_same_for_the_same_curves(tmp_path):
    pytest.importorskip("matplotlib")
    given = {"ours": {1: curve(7.0, 5.0)}, "peer": {1: curve(8.0, 6.0)}}
    for name in ("a.svg", "b.svg"):
        curves.draw(given, path=tmp_path / name, title="loss")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "ours" in (tmp_path / "a.svg").read_text()


def test_start_up_and_saving_take_no_time():
    now = [100.0]

    def update():
        now[0] += 1
        return now[0]

    def save(number):
        saved.append(number)
        now[0] += 50

    saved = []
    found = run_updates(job(), update, save, started=90.0, clock=lambda: now[0])
    assert saved == [4, 8, 10]
    assert found["start_seconds"] == 11.0
    assert [point[:2] for point in found["points"]] == [[4, 3.0], [8, 7.0], [10, 9.0]]
    assert found["points"][0][2] == np.mean([101, 102, 103, 104])


def test_a_timing_run_saves_nothing_and_ends_early():
    saved = []
    short = job(stop_after=4)
    short = dataclasses.replace(short, checkpoints=0)
    clock = iter(range(100))
    found = run_updates(short, lambda: 1.0, saved.append, started=0, clock=lambda: next(clock))
    assert saved == []
    assert [point[0] for point in found["points"]] == [4]


@pytest.mark.parametrize(("updates", "checkpoints", "spacing"), [(10, 3, 4), (9, 3, 3), (2, 9, 1)])
def test_checkpoints_are_evenly_spaced(updates, checkpoints, spacing):
    assert trainings.spacing(updates, checkpoints) == spacing


def test_a_job_survives_json():
    again = TrainingJob.from_json({**json.loads(json.dumps(job().to_json())), "settings": {}})
    assert again == job()


def test_seconds_follow_from_the_rates_of_the_log():
    log = [
        {"step": 11, "sequences_per_second": 40.0, "loss": 6.0, "masked_lm_loss": 5.5},
        {"step": 21, "sequences_per_second": 80.0, "loss": 5.0},
        {"step": 31, "sequences_per_second": 80.0, "loss": 5.0, "global_batch": 16},
    ]
    assert ours.points_of_log(log, 8) == [[11, 2.0, 5.5], [21, 3.0, 5.0], [31, 5.0, 5.0]]


def test_settings_become_flags_of_pretraining():
    given = {"records": "packed", "warmup_share": 0.2, "learning_rate": 1e-3, "seed": 9}
    found = ours.training_flags(job(stop_after=6), {**given, "flagfile": "recipe.flags"})
    assert next(iter(found)) == "flagfile"  # what follows a flag file overrides it
    assert "max_predictions_per_seq" not in found
    assert ours.training_flags(job(), given)["max_predictions_per_seq"] == 5
    assert found["input_file"] == "records"
    assert (found["num_train_steps"], found["num_warmup_steps"]) == (10, 2)
    assert found["stop_after_steps"] == 6
    assert (found["save_checkpoints_steps"], found["display_loss_steps"]) == (4, 4)
    assert (found["learning_rate"], found["seed"]) == (1e-3, 9)
    assert not {"records", "warmup_share"} & set(found)


def test_a_contender_with_other_settings():
    found = contender("google-bert:learning_rate=1e-3:batch_size=64:amp=false:name=x")
    known = CONTENDERS["google-bert"]
    assert found.settings == {
        **known.settings, "learning_rate": 1e-3, "batch_size": 64, "amp": False, "name": "x"
    }  # fmt: skip
    assert (found.module, found.is_ours) == (known.module, False)
    assert known.settings["batch_size"] == 32
    ramped = contender("ours:batch_ramp=32+32:320:learning_rate=2e-3").settings
    assert (ramped["batch_ramp"], ramped["learning_rate"]) == ("32+32:320", 2e-3)
    with pytest.raises(UserError, match="'nobody' is none of google-bert"):
        contender("nobody")
    with pytest.raises(UserError, match="'fast' of 'ours:fast' is not SETTING=VALUE"):
        contender("ours:fast")


def test_lines_are_documents(tmp_path):
    for number, text in enumerate(["a b\nc\n\nd\n", "e\n\n\nf\n"]):
        (tmp_path / f"shard-{number}.txt").write_text(text)
    shards = sorted(str(path) for path in tmp_path.glob("shard-*"))
    data.write_lines(shards, tmp_path / "lines.txt")
    assert (tmp_path / "lines.txt").read_text() == "a b c\nd\ne\nf\n"


def test_a_peer_without_its_code_is_refused(tmp_path):
    values = flags.FlagValues()
    define_flags(time_to_loss.FLAGS, values)
    values(["program", "--input_file=x", f"--output_dir={tmp_path}", "--subjects=google-bert"])
    with pytest.raises(UserError, match="google-bert needs --google_bert_dir"):
        next(time_to_loss.measure(values))
    assert not list(tmp_path.iterdir())


def test_data_of_other_settings_is_refused(tmp_path):
    given = data.TextSettings("a.txt", 100, 0.1, 32, 1, None)
    data._check_same_settings(given, tmp_path)
    data._check_same_settings(dataclasses.replace(given, google_bert_dir="bert"), tmp_path)
    with pytest.raises(UserError, match="has data of --dupe_factor=1, not 2"):
        data._check_same_settings(dataclasses.replace(given, dupe_factor=2), tmp_path)
