"""Where a run goes on, also from checkpoints that count less. The whole is in tests/end_to_end."""

import json
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.train.start_point import COUNTS, ResumingSaver, StartPoint, find_start
from bert_tf.update.loss_scale import GOOD_UPDATES, SCALE
from bert_tf.update.train_op import CONSUMED_SEQUENCES, SKIPPED_UPDATES
from bert_tf.util.errors import UserError


def save(directory, *, steps=(12,), **variables):
    """Checkpoints as a trainer writes them, with a weight large enough to be cut in the middle."""
    directory.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        tf.get_variable("a/weight", initializer=tf.ones([1000]))
        for name, value in variables.items():
            tf.get_variable(name, initializer=tf.constant(value, tf.int64))
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(save_relative_paths=True)
        for number in steps:
            session.run(step.assign(number))
            saver.save(session, str(directory / "model.ckpt"), global_step=number)
    return directory


def test_an_empty_directory_starts_at_0(tmp_path):
    assert find_start(tmp_path) == StartPoint(None, 0, 0, 0)
    assert find_start(tmp_path / "missing") == StartPoint(None, 0, 0, 0)


def test_skipped_updates_consumed_their_data(tmp_path):
    save(tmp_path, **{SKIPPED_UPDATES: 5, CONSUMED_SEQUENCES: 170})
    assert find_start(tmp_path) == StartPoint(str(tmp_path / "model.ckpt-12"), 12, 17, 170)


def test_the_newest_checkpoint_counts(tmp_path):
    save(tmp_path, steps=(4, 9), **{SKIPPED_UPDATES: 1})
    assert find_start(tmp_path).step == 9


def test_a_run_that_an_earlier_version_rolled_back_is_not_resumed(tmp_path):
    save(tmp_path, steps=(9,))
    (tmp_path / "rollbacks.json").write_text("{}")
    with pytest.raises(UserError, match=r"rollbacks\.json: an earlier version of bert_tf rolled"):
        find_start(tmp_path)


def test_a_checkpoint_of_another_program_skipped_nothing(tmp_path):
    save(tmp_path)
    assert find_start(tmp_path) == StartPoint(str(tmp_path / "model.ckpt-12"), 12, 12, None)


def test_sequences_that_nobody_counted_are_those_of_as_many_updates(tmp_path):
    save(tmp_path, **{SKIPPED_UPDATES: 2})
    start = find_start(tmp_path)
    assert start.consumed(global_batch_size=8) == 14 * 8
    assert "assuming 14 updates x 8 (the current global batch) = 112" in start.assumption(8)
    (tmp_path / "run.json").write_text(json.dumps({"ledger": {"batch": {"global_batch": 32}}}))
    start = find_start(tmp_path)
    assert start.consumed(global_batch_size=8) == 14 * 32
    assert "assuming 14 updates x 32 (as recorded in run.json) = 448" in start.assumption(8)


def test_sequences_that_were_counted_are_taken_as_they_are(tmp_path):
    save(tmp_path, **{SKIPPED_UPDATES: 2, CONSUMED_SEQUENCES: 170})
    (tmp_path / "run.json").write_text(json.dumps({"ledger": {"batch": {"global_batch": 32}}}))
    start = find_start(tmp_path)
    assert start.consumed(global_batch_size=8) == 170
    assert start.assumption(8) is None
    assert find_start(tmp_path / "new").consumed(8) == 0
    assert find_start(tmp_path / "new").assumption(8) is None


@pytest.mark.parametrize(
    ("saved", "skipped", "consumed"),
    [
        ({}, 0, 96),
        ({SKIPPED_UPDATES: 5}, 5, 96),
        ({SKIPPED_UPDATES: 5, CONSUMED_SEQUENCES: 7}, 5, 7),
    ],
)
def test_what_a_checkpoint_counts_is_restored_and_the_rest_follows(
    tmp_path, saved, skipped, consumed
):
    save(tmp_path, **saved)
    with tf.Graph().as_default() as graph:
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("a/weight", initializer=tf.zeros([1000]), use_resource=True)
        counts = [
            tf.get_variable(name, initializer=tf.constant(99, tf.int64), use_resource=True)
            for name in (SKIPPED_UPDATES, CONSUMED_SEQUENCES)
        ]
        saver = ResumingSaver(tf.global_variables(), consumed=96)
        graph.finalize()
        with tf.Session() as session:
            saver.restore(session, str(tmp_path / "model.ckpt-12"))
            assert session.run([step, *counts]) == [12, skipped, consumed]
            assert session.run(weight).tolist() == [1.0] * 1000
            # What it writes is complete.
            written = saver.save(session, str(tmp_path / "new"), 13)
    assert set(tf.train.load_checkpoint(written).get_variable_to_shape_map()) >= COUNTS


@pytest.mark.parametrize("saved", [{}, {SCALE: np.float32(32), GOOD_UPDATES: np.int64(3)}])
def test_a_dynamic_loss_scale_may_follow_a_checkpoint_without_one(tmp_path, saved):
    counts = {SKIPPED_UPDATES: np.int64(1), CONSUMED_SEQUENCES: np.int64(2)}
    write_checkpoint(str(tmp_path / "model.ckpt-4"), {**counts, **saved})
    with tf.Graph().as_default(), tf.Session() as session:
        names = [*counts, SCALE, GOOD_UPDATES]
        variables = [
            tf.get_variable(n, initializer=tf.constant(9, t), use_resource=True)
            for n, t in zip(names, [tf.int64, tf.int64, tf.float32, tf.int64])
        ]
        saver = ResumingSaver(variables, consumed=5, loss_scale=1024.0)
        saver.restore(session, str(tmp_path / "model.ckpt-4"))
        scale = [32.0, 3] if saved else [1024.0, 0]
        assert session.run(variables) == [1, 2, *scale]


def test_a_directory_may_be_moved(tmp_path):
    save(tmp_path / "old", **{SKIPPED_UPDATES: 5})
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert find_start(tmp_path / "new").checkpoint == str(tmp_path / "new" / "model.ckpt-12")


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("kept", [0, 40])
def test_a_truncated_checkpoint_is_one_sentence(tmp_path, ending, kept):
    save(tmp_path, **{SKIPPED_UPDATES: 5})
    path = tmp_path / f"model.ckpt-12.{ending}"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        UserError, match=r"^--output_dir: checkpoint .*model\.ckpt-12 cannot be read"
    ):
        find_start(tmp_path)


def test_a_checkpoint_that_counts_no_steps(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("weight", initializer=1.0)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    with pytest.raises(UserError, match="cannot be read"):
        find_start(tmp_path)


@pytest.mark.parametrize("damage", ["checkpoint missing", "list spoilt", "list empty"])
def test_what_cannot_be_found_is_no_new_start(tmp_path, damage):
    save(tmp_path, steps=(4, 9))
    if damage == "checkpoint missing":
        for path in tmp_path.glob("model.ckpt-9.*"):
            path.unlink()
    else:
        (tmp_path / "checkpoint").write_text("no list" if damage == "list spoilt" else "")
    with pytest.raises(UserError, match=r"--output_dir: .* is missing; list an older one"):
        find_start(tmp_path)


def test_without_a_list_a_run_resumes_from_the_newest_complete_checkpoint(tmp_path):
    save(tmp_path, steps=(4, 9, 12), **{SKIPPED_UPDATES: 0, CONSUMED_SEQUENCES: 5})
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "model.ckpt-12.index").unlink()
    assert find_start(tmp_path) == StartPoint(str(tmp_path / "model.ckpt-9"), 9, 9, 5)


def test_each_checkpoint_has_a_meta_file_that_is_written_first_and_deleted_with_it(
    tmp_path, monkeypatch
):
    """@tf.train.Saver writes it last, so that a killed run may leave checkpoints without it."""
    plain_save, found_before = tf.train.Saver.save, []

    def save(*arguments, **named):
        found_before.append(sorted(path.name for path in tmp_path.iterdir()))
        return plain_save(*arguments, **named)

    monkeypatch.setattr(tf.train.Saver, "save", save)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("bert/weight", initializer=tf.ones([2, 3]), use_resource=True)
        step = tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        saver = ResumingSaver(tf.global_variables(), consumed=0, max_to_keep=1)
        for number in (1, 2):
            session.run(step.assign(number))
            saver.save(session, str(tmp_path / "model.ckpt"), number)
    assert found_before[0] == ["model.ckpt-1.meta"]
    checkpoint = tmp_path / "model.ckpt-2"
    kept = ("data-00000-of-00001", "index", "meta")
    assert sorted(tmp_path.glob("model*")) == [tmp_path / f"model.ckpt-2.{end}" for end in kept]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(f"{checkpoint}.meta").restore(session, str(checkpoint))
        assert [v.op.name for v in tf.trainable_variables()] == ["bert/weight"]
        assert session.run(tf.global_variables()[0]).tolist() == np.ones([2, 3]).tolist()
        assert session.run(tf.train.get_global_step()) == 2
