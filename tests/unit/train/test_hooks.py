"""Hooks in a real session over a stand-in for an update that is fed what it does."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import newest_checkpoint
from bert_tf.train import hooks
from bert_tf.train.start_point import StartPoint
from bert_tf.util.errors import UserError
from tests.helpers.fake_update import FakeUpdate, fake_update, training
from tests.helpers.files import no_room
from tests.helpers.jobs import begun, job_of, steps_of
from tests.helpers.settings import run_settings

update = pytest.fixture(fake_update)


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
    with pytest.raises(UserError), training(checkpoint_hook(update, tmp_path)) as session:
        update.run(session)
        raise UserError("an update is not finite")
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
    settings = run_settings(
        Path("out"), do_train=True, do_eval=True, save_checkpoints_steps=1, eval_every_steps=2
    )
    evaluation = SimpleNamespace(at_start=at_start)
    return job_of(None, run=begun(settings=settings), steps=steps_of(steps), evaluation=evaluation)


def test_evaluation_at_the_start_and_on_the_way_but_not_at_the_end(update):
    seen = []
    job = evaluated_job(steps=4, at_start=True)
    hook = hooks.EvaluationHook(update.outputs, job, lambda: seen.append(hook.step) or False)
    with training(hook) as session:
        update.run(session)
        update.run(session)
        update.run(session, finite=False)
        update.run(session)
        update.run(session)
    assert seen == [0, 2]


def test_an_evaluation_may_end_the_training(update):
    job = evaluated_job(steps=9, at_start=False)
    hook = hooks.EvaluationHook(update.outputs, job, lambda: True)
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
