"""A stand-in for an update that is fed what it does, and sessions with hooks over it."""

import contextlib

import tensorflow.compat.v1 as tf

from bert_tf.model.losses import Sums
from bert_tf.update.train_op import TrainOutputs, VariableFigures


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


def fake_update():
    """A fixture: the update in a graph of its own."""
    with tf.Graph().as_default():
        yield FakeUpdate()


@contextlib.contextmanager
def training(*session_hooks):
    with tf.train.MonitoredSession(hooks=session_hooks) as session:
        yield session
