"""Hooks in a real session over a stand-in for an update that is fed what it does."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import newest_checkpoint
from bert_tf.config.ramps import Ramp
from bert_tf.model.sums import Sums
from bert_tf.train import hooks
from bert_tf.train.run_log import RunLog
from bert_tf.train.start_point import StartPoint
from bert_tf.train.summary import UpdateTimes, WarmUp
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.train_op import TrainOutputs, VariableFigures
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.jobs import begun, job_of, step_plan
from tests.helpers.settings import run_settings


class FakeUpdate:
    """An update whose sums, finiteness and loss scale are fed."""

    def __init__(self):
        self.step = tf.train.get_or_create_global_step()
        self.sums = tf.placeholder(tf.float32, [3])
        self.is_finite = tf.placeholder(tf.bool, [])
        self.scale = tf.placeholder_with_default(1.0, [])
        self.sequences = tf.placeholder_with_default(tf.constant(8, tf.int64), [])
        self.position = tf.placeholder_with_default(self.step.read_value() + 7, [])
        train_op = self.step.assign_add(tf.cast(self.is_finite, tf.int64)).op
        self.outputs = TrainOutputs(
            train_op=train_op,
            term_sums={"masked_lm": self._sums_of(*tf.unstack(self.sums))},
            data_position=self.position,
            num_sequences=self.sequences,
            is_finite=self.is_finite,
            gradient_norm=tf.constant(2.0),
            learning_rate=tf.constant(0.25),
            loss_scale=self.scale,
            gradients=[],
            figures=VariableFigures([], tf.zeros([0]), {}),
        )

    def _sums_of(self, loss, weight, correct):
        return Sums(loss, weight, {"accuracy": correct})

    def run(self, session, sums=(1.0, 1.0, 1.0), *, finite=True, scale=1.0):
        feed = {self.sums: sums, self.is_finite: finite, self.scale: scale}
        session.run(self.outputs.train_op, feed)


@pytest.fixture
def update():
    with tf.Graph().as_default():
        yield FakeUpdate()


@contextlib.contextmanager
def training(*session_hooks):
    with tf.train.MonitoredSession(hooks=session_hooks) as session:
        yield session


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


def test_the_first_update_is_reported_once(update):
    reports = []
    with training(hooks.FirstUpdate(reports.append)) as session:
        assert reports == []
        for finite in (False, True, True):
            update.run(session, finite=finite)
            [report] = reports
            assert report["seconds_to_first_update"] > 0


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
        steps=step_plan(given("total_steps", 5)),
        batch=given("batch", BatchPlan(8, 1, world_size=1)),
        scales_loss=has_loss_scale,
    )
    usual = {"warm_up": WarmUp(), "times": UpdateTimes(), "clock": FakeClock()}
    return hooks.ProgressHook(update.outputs, job, **{**usual, **changes})


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
    times, clock = UpdateTimes(), ClockOfTicks()
    with training(progress(update, RunLog(tmp_path), times=times, clock=clock)) as session:
        for clock.tick in (9, 2, 3):
            update.run(session)
    assert times == UpdateTimes(updates=3, sequences=24, steady_sequences=16, steady_seconds=5)


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


def guard_of(update, limit, seen=None):
    """A guard that explains a skipped update by its step, and notes all that it knows of it."""

    def explain(session, skipped):
        assert session.run(update.step) == skipped.step
        if seen is not None:
            seen.append(skipped)
        return UserError(f"stopped after step {skipped.step}")

    return hooks.NonFiniteGuard(
        update.outputs, limit=limit, features={"sums": update.sums}, explain=explain
    )


def test_the_first_skipped_update_ends_a_run_that_may_skip_none(update):
    with (
        pytest.raises(UserError, match="stopped after step 1"),
        training(guard_of(update, 1)) as session,
    ):
        update.run(session)
        update.run(session, finite=False)


def test_only_skipped_updates_in_a_row_end_a_run(update):
    seen = []
    with training(guard_of(update, 3, seen)) as session:
        for finite in (False, False, True, False, True, False, False):
            update.run(session, finite=finite)
        with pytest.raises(UserError, match="stopped after step 2"):
            update.run(session, (5.0, 6.0, 7.0), finite=False, scale=8.0)
    [skipped] = seen
    # The stand-in counts steps only.
    assert (skipped.step, skipped.data_position, skipped.in_a_row) == (2, 9, 3)
    assert (skipped.loss_scale, skipped.learning_rate) == (8.0, 0.25)
    assert skipped.features["sums"].tolist() == [5.0, 6.0, 7.0]


def checkpoints(tmp_path):
    state = tf.train.get_checkpoint_state(str(tmp_path))
    return [int(path.rsplit("-", 1)[1]) for path in state.all_model_checkpoint_paths]


def checkpoint_hook(update, tmp_path, *, every_steps=2, keep=10):
    saver = tf.train.Saver(max_to_keep=keep)
    start = StartPoint(newest_checkpoint(tmp_path), 0, 0, 0)
    settings = run_settings(tmp_path, save_checkpoints_steps=every_steps)
    job = job_of(None, run=begun(settings=settings, start=start))
    return hooks.CheckpointHook(update.outputs, job, saver)


def test_checkpoints_at_the_start_at_multiples_and_at_the_end(update, tmp_path):
    with training(checkpoint_hook(update, tmp_path)) as session:
        for _ in range(5):
            update.run(session)
    assert checkpoints(tmp_path) == [0, 2, 4, 5]


def test_checkpoints_after_resuming_stay_at_multiples(tmp_path):
    for _ in range(2):
        with tf.Graph().as_default():
            update = FakeUpdate()
            hook = checkpoint_hook(update, tmp_path)
            creator = tf.train.ChiefSessionCreator(checkpoint_dir=str(tmp_path))
            with tf.train.MonitoredSession(creator, hooks=[hook]) as session:
                for _ in range(3):
                    update.run(session)
    assert checkpoints(tmp_path)[-2:] == [4, 6]
    assert tf.train.load_variable(str(tmp_path), "global_step") == 6


def test_a_skipped_update_at_a_multiple_saves_nothing_again(update, tmp_path):
    with training(checkpoint_hook(update, tmp_path)) as session:
        for finite in (True, True):
            update.run(session, finite=finite)
        for path in tmp_path.glob("model.ckpt-2.*"):
            path.unlink()
        for finite in (False, False, True):
            update.run(session, finite=finite)
    assert [int(path.stem.split("-")[1]) for path in sorted(tmp_path.glob("*.index"))] == [0, 3]


def test_only_so_many_checkpoints_are_kept(update, tmp_path):
    with training(checkpoint_hook(update, tmp_path, every_steps=1, keep=2)) as session:
        for _ in range(4):
            update.run(session)
    assert checkpoints(tmp_path) == [3, 4]
    assert len(list(tmp_path.glob("*.index"))) == 2


def test_no_checkpoint_is_written_when_the_run_fails(update, tmp_path):
    guard = guard_of(update, 1)
    with pytest.raises(UserError), training(guard, checkpoint_hook(update, tmp_path)) as session:
        update.run(session)
        update.run(session, finite=False)
    assert checkpoints(tmp_path) == [0]


def test_horovod_giving_up_while_slots_are_gathered_is_no_error_of_the_disk(update, tmp_path):
    class Gathering(tf.train.Saver):
        def save(self, *_, **__):
            raise tf.errors.UnknownError(None, None, "Horovod has been shut down")

    job = job_of(None, run=begun(settings=run_settings(tmp_path)))
    hook = hooks.CheckpointHook(update.outputs, job, Gathering())
    with pytest.raises(tf.errors.UnknownError, match="Horovod has been shut down"), training(hook):
        pass


def test_a_checkpoint_that_cannot_be_written_is_one_sentence(update, tmp_path):
    hook = checkpoint_hook(update, tmp_path / "missing" / "directory")
    (tmp_path / "missing").write_text("a file where a directory should be")
    with pytest.raises(UserError, match="cannot write checkpoint"), training(hook):
        pass


def evaluated_job(*, steps, at_start):
    return job_of(None, steps=step_plan(steps), evaluation=SimpleNamespace(at_start=at_start))


def test_evaluation_at_the_start_and_on_the_way_but_not_at_the_end(update):
    seen = []
    job = evaluated_job(steps=4, at_start=True)
    hook = hooks.EvaluationHook(update.outputs, job, 2, lambda: seen.append(hook.step) or False)
    with training(hook) as session:
        update.run(session)
        update.run(session)
        update.run(session, finite=False)
        update.run(session)
        update.run(session)
    assert seen == [0, 2]


def test_an_evaluation_may_end_the_training(update):
    job = evaluated_job(steps=9, at_start=False)
    hook = hooks.EvaluationHook(update.outputs, job, 2, lambda: True)
    with training(hook) as session:
        update.run(session)
        assert not session.should_stop()
        update.run(session)
        assert session.should_stop()


def test_a_full_disk_names_the_checkpoint_and_the_reason(update, tmp_path):
    hook = checkpoint_hook(update, tmp_path)
    with pytest.raises(UserError) as error, no_room(10), training(hook):
        pass
    message = str(error.value)
    assert message.startswith(f"cannot write checkpoint {tmp_path / 'model.ckpt'}-0 (")
    assert "File too large" in message.partition(";")[2]
    assert "Graph execution" not in message
