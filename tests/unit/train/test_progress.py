"""Progress lines in a session, totals at the end by hand, and what is said of compilation."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.ramps import Ramp
from bert_tf.model.compilation import compiled
from bert_tf.train.progress import (
    ProgressHook,
    StartUp,
    Throughput,
    Work,
    prediction_lines,
    training_lines,
)
from bert_tf.train.run_log import RunLog
from bert_tf.train.start_point import StartPoint
from bert_tf.update.batch_plan import BatchPlan
from tests.helpers.fake_update import FakeUpdate, fake_update, training
from tests.helpers.jobs import begun, job_of, steps_of
from tests.helpers.settings import run_settings

update = pytest.fixture(fake_update)


class FakeClock:
    def __init__(self):
        self.now, self.calls = 0.0, 0

    def __call__(self):
        self.calls += 1
        self.now += 100.0 if self.calls == 2 else 1.0
        return self.now


class ClockOfTicks:
    """An update takes one tick."""

    now = tick = 0.0

    def __call__(self):
        self.now += self.tick
        return self.now


def progress(update, log, *, skipped=0, has_loss_scale=False, **changes):
    """The hook of a run, by default of five updates of eight sequences."""

    def given(name, usual):
        return changes.pop(name, usual)

    settings = run_settings(
        Path("out"),
        display_loss_steps=given("every_steps", 2),
        save_checkpoints_steps=given("checkpoint_steps", 100),
    )
    job = job_of(
        None,
        run=begun(settings=settings, log=log, start=StartPoint(None, 0, skipped, 0)),
        steps=steps_of(given("total_steps", 5)),
        batch=given("batch", BatchPlan(8, 1, world_size=1)),
        scales_loss=has_loss_scale,
    )
    throughput = changes.pop("throughput", None) or Throughput()
    return ProgressHook(update.outputs, job, throughput, **{"clock": FakeClock(), **changes})


def read_log(tmp_path, name="log.jsonl"):
    return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


def test_progress_reports_means_over_the_window(update, tmp_path, capsys):
    with training(progress(update, RunLog(tmp_path))) as session:
        update.run(session, (6.0, 2.0, 1.0))
        update.run(session, (2.0, 6.0, 3.0))
        update.run(session, (5.0, 1.0, 1.0))
    [line] = read_log(tmp_path)
    assert line["step"] == 2
    assert line["loss"] == pytest.approx(1.0)
    assert line["masked_lm_accuracy"] == pytest.approx(0.5)
    assert line["learning_rate"] == 0.25
    assert line["masked_lm_loss"] == line["loss"]
    assert line["gradient_norm"] == 2.0
    # An update takes one tick of the clock, the first 100 and is not counted; 8 sequences each.
    assert line["sequences_per_second"] == pytest.approx(8.0)
    shown = capsys.readouterr().out
    assert "step 2/5" in shown
    assert "ETA 3s" in shown


def test_progress_reports_the_last_step_and_short_runs(update, tmp_path):
    hook = progress(update, RunLog(tmp_path), every_steps=100, total_steps=1)
    with training(hook) as session:
        update.run(session)
    [line] = read_log(tmp_path)
    assert line["step"] == 1
    assert line["sequences_per_second"] == pytest.approx(0.08)


def test_updates_of_new_shapes_do_not_enter_the_rate(update, tmp_path):
    clock = ClockOfTicks()
    shape = tf.placeholder(tf.int32, [2])
    hook = progress(update, RunLog(tmp_path), every_steps=1, batch_shape=shape, clock=clock)
    with training(hook) as session:
        for length, clock.tick in [(32, 50), (32, 4), (64, 60), (64, 2)]:
            feed = {update.sums: (1, 1, 1), update.is_finite: True, shape: [8, length]}
            session.run(update.outputs.train_op, feed)
    rates = [line["sequences_per_second"] for line in read_log(tmp_path)]
    # Nothing steady is known before the second update; when a length is new, the last rate holds.
    assert rates == pytest.approx([8 / 50, 8 / 4, 8 / 4, 8 / 2])


def test_rates_and_time_left_of_growing_updates(update, tmp_path, capsys):
    """Updates of 4 x 16, 8 x 16 and 8 x 32 positions, the first one at position 7."""
    batch = BatchPlan(4, 2, world_size=1, sizes=Ramp((4, 8), (9,)), lengths=Ramp((16, 32), (11,)))
    clock = ClockOfTicks()
    log = RunLog(tmp_path)
    hook = progress(update, log, every_steps=4, total_steps=9, batch=batch, clock=clock)
    with training(hook) as session:
        for number, (size, clock.tick) in enumerate([(4, 100), (4, 2), (8, 3), (8, 3), (8, 5)]):
            feed = {
                update.sums: (1, 1, 1),
                update.is_finite: True,
                update.sequences: size,
                update.position: 7 + number,
            }
            session.run(update.outputs.train_op, feed)
    [line] = read_log(tmp_path)
    assert line["sequences_per_second"] == pytest.approx(20 / 8)
    assert (line["global_batch"], line["sequence_length"]) == (8, 16)
    # 20 x 16 positions in 8 seconds, and 5 updates of 8 x 32 are left.
    assert "ETA 32s" in capsys.readouterr().out


def test_all_updates_are_added_up(update, tmp_path):
    throughput, clock = Throughput(), ClockOfTicks()
    hook = progress(update, RunLog(tmp_path), throughput=throughput, clock=clock)
    with training(hook) as session:
        for clock.tick in (9, 2, 3):
            update.run(session)
    assert (throughput.updates, throughput.total) == (3, Work(24, 24, 14.0))
    assert throughput.steady == Work(16, 16, 5.0)


@pytest.mark.parametrize("resumed_at", [0, 4])
def test_a_resumed_run_reports_the_means_of_the_whole_one(tmp_path, resumed_at):
    """A window of three updates that a checkpoint after the fourth one cuts."""
    losses = [1.0, 2.0, 3.0, 40.0, 5.0, 6.0]
    with tf.Graph().as_default():
        update = FakeUpdate()
        hook = progress(
            update, RunLog(tmp_path), every_steps=3, total_steps=6, checkpoint_steps=4, skipped=7
        )
        with training(hook) as session:
            hook.step = resumed_at
            for loss in losses[resumed_at:]:
                update.run(session, (loss, 1.0, 1.0))
    last = read_log(tmp_path)[-1]
    assert (last["step"], last["loss"], last["skipped_updates"]) == (6, 5.5, 7)


def test_skipped_updates_are_counted_and_do_not_enter_the_means(update, tmp_path):
    with training(progress(update, RunLog(tmp_path))) as session:
        update.run(session, (2.0, 2.0, 0.0))
        update.run(session, (np.nan, 2.0, 0.0), finite=False)
        update.run(session, (2.0, 2.0, 0.0), scale=32.0)
    [line] = read_log(tmp_path)
    assert line["step"] == 2
    assert line["loss"] == pytest.approx(1.0)
    assert line["skipped_updates"] == 1
    assert line["loss_scale"] == 32.0


def test_with_a_loss_scale_every_line_counts_skipped_updates(update, tmp_path):
    hook = progress(update, RunLog(tmp_path), every_steps=1, has_loss_scale=True)
    with training(hook) as session:
        for finite in (True, False, True):
            update.run(session, finite=finite, scale=16.0)
    counted = [(line["skipped_updates"], line["loss_scale"]) for line in read_log(tmp_path)]
    assert counted == [(0, 16.0), (1, 16.0)]


def test_other_ranks_write_nothing(update, tmp_path, capsys):
    with training(progress(update, log=None)) as session:
        update.run(session)
        update.run(session)
    assert not list(tmp_path.glob("*.jsonl"))
    assert capsys.readouterr().out == ""


def test_the_first_update_of_each_shape_is_warm_up():
    throughput = Throughput()
    shapes = [(8, 32), (8, 32), (8, 64), (8, 32), (8, 64)]
    steady = [throughput.note(Work(1, 1, n), shape=shape) for n, shape in enumerate(shapes)]
    assert steady == [False, True, False, True, True]
    assert throughput.first_seconds == {(8, 32): 0, (8, 64): 2}


def test_a_training_with_and_without_start_up():
    throughput = Throughput()
    steady = [throughput.note(Work(10, 10, seconds)) for seconds in (7.0, 2.0, 3.0)]
    assert steady == [False, True, True]
    totals = throughput.totals(20.0)
    assert totals == {
        "sequences": 30,
        "seconds": 20.0,
        "sequences_per_second_with_start_up": 1.5,
        "steady_sequences": 20,
        "steady_seconds": 5.0,
        "sequences_per_second": 4.0,
    }
    whole, steady = training_lines(totals)
    assert whole.startswith("training took 20.00 s for 30 sequences: 1.5 sequences/s with start-up")
    assert steady == "training without them took 5.00 s for 20 sequences: 4 sequences/s"


@pytest.mark.parametrize(("has_loss_scale", "skipped"), [(True, 0), (True, 2), (False, 1)])
def test_skipped_updates_are_named(has_loss_scale, skipped):
    throughput = Throughput()
    for number in range(4):
        throughput.note(Work(2, 2, 1.0), is_skipped=number < skipped)
    totals = throughput.totals(9.0, has_loss_scale=has_loss_scale)
    assert training_lines(totals)[-1] == (
        f"{skipped} of 4 updates were skipped because a gradient was not finite"
    )


def test_one_update_is_all_start_up():
    throughput = Throughput()
    throughput.note(Work(10, 10, 7.0))
    totals = throughput.totals(20.0)
    assert len(training_lines(totals)) == 1
    assert "sequences_per_second" not in totals


def test_a_prediction_with_and_without_its_first_batch():
    seconds = [9.0, *[0.5] * 9, 1.5]
    whole, steady = prediction_lines(seconds, seconds=15.0, sequences=60, steady_sequences=54)
    assert whole == "prediction took 15.00 s for 60 sequences: 4 sequences/s with start-up"
    assert steady == (
        "prediction without it took 6.00 s for 54 sequences: 9 sequences/s; ms a batch: "
        "p50 500.0, p90 600.0, p95 1050.0, p99 1410.0, p100 1500.0, mean 600.0"
    )
    assert len(prediction_lines([9.0], seconds=9.0, sequences=6, steady_sequences=0)) == 1


class Log:
    """Keeps the lines, and the entries for run.json."""

    def __init__(self):
        self.lines, self.entries = [], []

    def record(self, entries):
        self.entries.append(entries)

    def message(self, text):
        self.lines.append(text)


def report(updates, *, functions=2, is_compiled=True):
    """The lines and entries after each update of (shape, seconds), and at the end."""
    throughput, log, seen = Throughput(), Log(), []
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        outputs = [
            compiled(lambda: tf.random.stateless_uniform([2], [1, 2]))() for _ in range(functions)
        ]
        hook = StartUp(log, throughput, is_compiled=is_compiled)
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for shape, seconds in updates:
                hook.before_run(None)
                throughput.note(Work(1, 1, seconds), shape=shape)
                session.run(outputs)
                seen.append((len(log.lines), len(log.entries)))
    first, *entries = log.entries
    assert first.pop("seconds_to_first_update") > 0
    assert not first
    return log.lines, entries, seen


def test_compilation_is_announced_and_its_seconds_said_once():
    lines, entries, seen = report([((8,), 5.0), ((8,), 1.0), ((8,), 1.0)])
    assert "XLA compiles 2 functions of an update" in lines[0]
    assert "1 batch shape took 5.0 s" in lines[-1]
    assert entries == [{"xla_functions": 2, "xla_compile_seconds": 5.0, "xla_shapes": 1}]
    assert len({count for count, _ in seen}) == 1


def test_further_shapes_are_reported_at_the_end():
    lines, entries, _ = report([((8,), 5.0), ((8,), 1.0), ((9,), 3.0), ((9,), 1.0)])
    assert "2 batch shapes took 8.0 s" in lines[-1]
    assert [entry["xla_shapes"] for entry in entries] == [1, 2]


def test_without_xla_only_the_first_update_is_recorded():
    lines, entries, seen = report([((), 5.0), ((), 1.0)], is_compiled=False)
    assert (lines, entries, seen) == ([], [], [(0, 1), (0, 1)])
