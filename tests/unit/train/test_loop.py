"""The loop: where it starts and ends, and the bits that an Estimator computes."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.compat.estimator.choice import tf_estimator
from bert_tf.train import loop

pytestmark = pytest.mark.each_tensorflow

SEED = 5
CONFIG = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
X = np.arange(24, dtype=np.float32).reshape(12, 2) / 10
Y = (X @ np.float32([[1.0], [-2.0]]))[:, 0] + np.float32(0.5)


def batches():
    return tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(4)


def random_batches():
    """Without seeds, so that it depends on the graph's seed and on operations created before."""
    return tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).shuffle(12).repeat().batch(4)


def predicted(features, *, rate=0.25):
    """With dropout that has no seed, as the input above."""
    weights = tf.get_variable("weights", [2, 1], initializer=tf.ones_initializer())
    return tf.nn.dropout((features["x"] @ weights)[:, 0], rate=rate)


def train_op(features):
    loss = tf.reduce_mean(tf.square(predicted(features) - features["y"]))
    return tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf.train.get_global_step())


class SaveAtEnd(tf.train.SessionRunHook):
    def __init__(self, saver, directory):
        self.saver, self.prefix = saver, str(directory / "model.ckpt")

    def begin(self):
        self.step = tf.train.get_global_step()

    def end(self, session):
        self.saver.save(session, self.prefix, session.run(self.step), write_meta_graph=False)


def train(directory, last_step, *, hooks=(), input_fn=random_batches, checkpoint_dir="same", **how):
    """Trains, saves at the end and returns the arrays that are saved."""

    def build(features):
        op = train_op(features)
        saver = tf.train.Saver(max_to_keep=2, save_relative_paths=True)
        return loop.Update(op, saver, [*hooks, SaveAtEnd(saver, directory)])

    checkpoint_dir = str(directory) if checkpoint_dir == "same" else checkpoint_dir
    loop.train(
        input_fn,
        build,
        last_step=last_step,
        checkpoint_dir=checkpoint_dir,
        **{"seed": SEED, "config": CONFIG, **how},
    )
    return arrays(directory)


def predict(directory, *, checkpoint="newest", build=None, **how):
    newest = tf.train.latest_checkpoint(str(directory))
    return loop.predict(
        batches,
        build or (lambda features: {"y": predicted(features)}),
        checkpoint=newest if checkpoint == "newest" else checkpoint,
        **{"hooks": [], "seed": SEED, "config": CONFIG, **how},
    )


def arrays(directory):
    reader = tf.train.load_checkpoint(str(directory))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def estimator(directory):
    """The same network with TensorFlow's own Estimator, or ours if there is none."""

    def model_fn(features, mode):
        if mode == tf_estimator.ModeKeys.PREDICT:
            return tf_estimator.EstimatorSpec(mode, predictions={"y": predicted(features)})
        op = train_op(features)
        return tf_estimator.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=op)

    config = tf_estimator.RunConfig(tf_random_seed=SEED, session_config=CONFIG)
    return tf_estimator.Estimator(model_fn, str(directory), config)


def test_training_and_predictions_are_those_of_an_estimator(tmp_path):
    """To the bit, with random operations that have no seeds."""
    (tmp_path / "ours").mkdir()
    theirs = estimator(tmp_path / "theirs")
    for last_step in (3, 7):  # the second time from the checkpoint of the first
        theirs.train(random_batches, max_steps=last_step)
        assert_same(train(tmp_path / "ours", last_step), arrays(tmp_path / "theirs"))
    expected = list(theirs.predict(batches, yield_single_examples=False))
    found = list(predict(tmp_path / "ours"))
    assert len(found) == len(expected) == 3
    for ours, of_estimator in zip(found, expected):
        assert_same(ours, of_estimator)


def test_training_resumes_from_the_newest_checkpoint_and_counts_older_ones(tmp_path):
    saved = [train(tmp_path, step)["global_step"] for step in (2, 4, 6)]
    assert saved == [2, 4, 6]
    # All were written by savers of their own, and the newest two are kept.
    assert {path.stem for path in tmp_path.glob("*.index")} == {"model.ckpt-4", "model.ckpt-6"}


def test_without_a_directory_training_starts_from_initial_values(tmp_path):
    first = train(tmp_path, 2)
    assert_same(train(tmp_path, 2, checkpoint_dir=None), first)


def test_training_ends_with_its_input(tmp_path):
    assert train(tmp_path, 100, input_fn=batches)["global_step"] == 3


class Recorder(tf.train.SessionRunHook):
    def __init__(self, name, record, stop_after=None):
        self.name, self.record, self.stop_after = name, record, stop_after

    def begin(self):
        self.record.append((self.name, "begin"))

    def after_create_session(self, session, coord):
        self.record.append((self.name, "session"))

    def after_run(self, run_context, run_values):
        self.record.append((self.name, "run"))
        if self.record.count((self.name, "run")) == self.stop_after:
            run_context.request_stop()

    def end(self, session):
        self.record.append((self.name, "end"))


def both(*events):
    return [(name, event) for event in events for name in ("a", "b")]


def test_hooks_act_in_order_and_one_may_stop(tmp_path):
    record = []
    hooks = [Recorder("a", record, stop_after=2), Recorder("b", record)]
    assert train(tmp_path, 5, hooks=hooks)["global_step"] == 2
    assert record == both("begin", "session", "run", "run", "end")
    record.clear()
    hooks = [Recorder("a", record), Recorder("b", record)]
    assert len(list(predict(tmp_path, hooks=hooks))) == 3
    assert record == both("begin", "session", "run", "run", "run", "end")


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_a_session_that_fails_is_not_made_again(tmp_path, error):
    """It would read the input from its beginning, with the step of the last checkpoint."""

    class Fails(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise error(None, None, "lost")

    with pytest.raises(error, match="lost"):
        train(tmp_path, 3, hooks=[Fails()])
    with pytest.raises(error, match="lost"):
        list(predict(tmp_path, hooks=[Fails()]))


def test_predictions_of_initial_values_and_of_a_checkpoint(tmp_path):
    def exactly(features):
        return {"y": predicted(features, rate=0.0), "step": tf.train.get_global_step().read_value()}

    found = list(predict(tmp_path, checkpoint=None, build=exactly))
    np.testing.assert_allclose(np.concatenate([batch["y"] for batch in found]), X.sum(axis=1))
    assert [batch["step"] for batch in found] == [0, 0, 0]
    weights = train(tmp_path, 2)["weights"]
    train(tmp_path, 4)
    found = list(predict(tmp_path, checkpoint=str(tmp_path / "model.ckpt-2"), build=exactly))
    np.testing.assert_allclose(np.concatenate([b["y"] for b in found]), (X @ weights)[:, 0], 1e-5)
    assert [batch["step"] for batch in found] == [2, 2, 2]


def test_a_prediction_within_training(tmp_path):
    """As of evaluations between updates; neither graph sees the other."""

    class Predicts(tf.train.SessionRunHook):
        found = ()

        def after_run(self, run_context, run_values):
            self.found = list(predict(tmp_path, checkpoint=None))

    hook = Predicts()
    expected = train(tmp_path, 3)
    assert_same(train(tmp_path, 3, hooks=[hook], checkpoint_dir=None), expected)
    for ours, alone in zip(hook.found, predict(tmp_path, checkpoint=None)):
        assert_same(ours, alone)


def test_a_network_that_a_checkpoint_lacks_variables_of_is_not_predicted(tmp_path):
    train(tmp_path, 1)

    def other(features):
        return {"y": features["x"] * tf.get_variable("another", [2])}

    with pytest.raises(tf.errors.NotFoundError, match="another"):
        next(predict(tmp_path, build=other))
