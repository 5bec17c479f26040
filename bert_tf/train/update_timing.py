"""Times a job's updates before it is trained, and large products, for the utilisation."""

from __future__ import annotations

import math
import socket
import statistics
import time
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import user_errors
from bert_tf.model.task import create_network
from bert_tf.ranks.ranks import Ranks
from bert_tf.train import loop
from bert_tf.train.job import Job
from bert_tf.train.trainer import build_update
from bert_tf.tuning.arithmetic import SessionSettings, session_config
from bert_tf.update.batch_plan import BatchPlan

_WARM_UP_UPDATES = 2
_TIMED_SECONDS, _FEWEST_UPDATES, _MOST_UPDATES = 2.0, 2, 50
# Products that are large enough for the full rate, small enough to be quick.
_ROWS, _ROWS_ON_A_GPU = 2048, 8192
_TIMED_PRODUCTS = 5
_BATCHES = 9  # if sizes differ, the batch of median size among these is used

Batch = Mapping[str, np.ndarray]


def seconds_per_update(job: Job) -> float:
    """Estimates the duration of an update from that of a single micro batch. Collective.

    With ramps, estimates the largest updates.
    """
    batch = job.plan.batch
    one = job.with_batch(BatchPlan(batch.micro_batch_size, 1, batch.world_size))
    with user_errors():
        return batch.accumulation_steps * time_updates(one, typical_batch(one))


def time_updates(job: Job, batch: Batch) -> float:
    """The median seconds of an update of a fresh network on one batch, on the slowest rank.

    Times updates for about two seconds, and at least two of them, after two that may include
    compilation. Collective.
    """
    with tf.Graph().as_default():
        fed = {
            name: tf.placeholder(spec.dtype, spec.shape)
            for name, spec in job.train_input().element_spec.items()
        }
        network = create_network(job.task, job.arithmetic.options, seed=job.settings.seed)
        outputs = build_update(job, network, fed)
        initial_values = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        feed = {fed[name]: value for name, value in batch.items()}
        with tf.Session(config=session_config(job.arithmetic.session)) as session:

            def update() -> float:
                started = time.perf_counter()
                session.run(outputs.train_op, feed)
                return time.perf_counter() - started

            session.run(initial_values)
            *_, last = (update() for _ in range(_WARM_UP_UPDATES))
            updates = min(max(math.ceil(_TIMED_SECONDS / last), _FEWEST_UPDATES), _MOST_UPDATES)
            seconds = [update() for _ in range(job.run.ranks.broadcast(updates))]
    return max(job.run.ranks.gather(statistics.median(seconds)))


def typical_batch(job: Job) -> Batch:
    """The batch of median size among the next batches of this rank."""

    def next_batches() -> tf.data.Dataset:
        dataset = job.train_input()
        shapes = [spec.shape for spec in dataset.element_spec.values()]
        are_static = all(shape.is_fully_defined() for shape in shapes)
        return dataset.take(1 if are_static else _BATCHES)

    batches = loop.predict(
        next_batches,
        lambda features: features,
        checkpoint=None,
        hooks=(),
        seed=job.settings.seed,
        config=session_config(job.arithmetic.session),
    )
    by_size = sorted(batches, key=lambda batch: sum(value.size for value in batch.values()))
    return by_size[len(by_size) // 2]


def describe_conditions(job: Job) -> str:
    """Describes what a timing depends on, so that a resumed run knows whether to reuse it."""
    threads, options = job.run.ranks.threads, job.arithmetic.options
    form = "native" if options.native_layers else "TensorFlow's"
    return (
        f"{socket.gethostname()}, {threads} threads a rank, {job.plan.batch.arithmetic()}, "
        f"length {job.training.max_seq_length}, dense {options.policy.dense.name}, "
        f"{form} layers"
    )


def peak_flops(ranks: Ranks, session: SessionSettings, dtype: tf.DType) -> float:
    """FLOP/s of all ranks together in products of two large square matrices. Collective.

    All ranks measure at the same time, because they share processors and power when they train.
    """
    rows = _ROWS if session.gpu is None else _ROWS_ON_A_GPU
    with tf.Graph().as_default(), tf.Session(config=session_config(session)) as running:
        # A variable, because a product of constants would be computed only once.
        matrix = tf.get_variable("matrix", [rows, rows], dtype, tf.ones_initializer())
        product = tf.matmul(matrix, matrix).op
        running.run(tf.global_variables_initializer())
        running.run(product)
        ranks.gather(None)
        seconds = []
        for _ in range(_TIMED_PRODUCTS):
            started = time.perf_counter()
            running.run(product)
            seconds.append(time.perf_counter() - started)
    return sum(ranks.gather(2 * rows**3 / min(seconds)))
