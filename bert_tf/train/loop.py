"""Runs updates and predictions with TensorFlow 1.x's graph, session and hooks.

Each call builds a graph of its own, so calls share nothing but checkpoints: an evaluation can run
while a training session waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.task import Features

InputFunction = Callable[[], tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class Update:
    """One update of training, with its saver and hooks.

    Attributes:
      train_op: the update, which adds 1 to ``global_step`` if it is applied.
      saver: restores the variables from a checkpoint.
      hooks: act before, between and after updates, in this order.
    """

    train_op: tf.Operation
    saver: tf.train.Saver
    hooks: Sequence[tf.train.SessionRunHook]


def train(
    input_fn: InputFunction,
    build: Callable[[Features], Update],
    *,
    last_step: int,
    checkpoint_dir: str | None,
    seed: int,
    config: tf.ConfigProto,
) -> None:
    """Runs updates until ``global_step`` is ``last_step``, a hook stops them or the input ends.

    ``last_step`` must be above the checkpoint's step. The newest checkpoint in ``checkpoint_dir``
    is restored; if there is none, or for None, variables get their initial values. Random
    operations without seeds of their own are numbered as they are made, those of the input first.
    """
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        tf.train.create_global_step()
        iterator = _iterator(input_fn)
        update = build(iterator.get_next())
        with tf.train.SingularMonitoredSession(
            hooks=[tf.train.StopAtStepHook(last_step=last_step), *update.hooks],
            scaffold=_scaffold(update.saver),
            config=config,
            checkpoint_dir=checkpoint_dir,
        ) as session:
            session.raw_session().run(iterator.initializer)
            while not session.should_stop():
                session.run(update.train_op)


def predict(
    input_fn: InputFunction,
    build: Callable[[Features], Mapping[str, tf.Tensor]],
    *,
    checkpoint: str | None,
    hooks: Sequence[tf.train.SessionRunHook],
    seed: int,
    config: tf.ConfigProto,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the outputs for each batch of an input that ends.

    Nothing happens before the first one is requested. ``checkpoint``, a path without suffixes, must
    have all variables that the graph saves; None for initial values.
    """
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        tf.train.create_global_step()
        iterator = _iterator(input_fn)
        outputs = build(iterator.get_next())
        with tf.train.SingularMonitoredSession(
            hooks=hooks,
            scaffold=_scaffold(),
            config=config,
            checkpoint_filename_with_path=checkpoint,
        ) as session:
            session.raw_session().run(iterator.initializer)
            while not session.should_stop():  # the session leaves this block when the input ends
                yield session.run(outputs)


def _scaffold(saver: tf.train.Saver | None = None) -> tf.train.Scaffold:
    """Does not ask, before the first update, whether all variables have values.

    That takes several operations for each, of which a small network has more than any other; a
    variable without a value is an error as soon as it is read.
    """
    nothing = tf.constant([], tf.string)
    return tf.train.Scaffold(saver=saver, ready_op=nothing, ready_for_local_init_op=nothing)


def _iterator(input_fn: InputFunction) -> tf.data.Iterator:
    with tf.device("/cpu:0"):  # some datasets have GPU kernels too
        dataset = input_fn()
    return tf.data.make_initializable_iterator(dataset)
