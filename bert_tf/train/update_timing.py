"""Times a job's updates before it is trained, with fresh weights and one of its next batches."""

from __future__ import annotations

import dataclasses
import math
import socket
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import user_errors
from bert_tf.model.task import create_network
from bert_tf.train.job import Job
from bert_tf.train.trainer import build_update
from bert_tf.train.xla import count_compiled_clusters, traced
from bert_tf.tuning.session import session_config

_WARM_UP_UPDATES = 3
_FEWEST_UPDATES, _MOST_UPDATES = 5, 50
_BATCHES = 9  # if sizes differ, the batch of median size among these is used

Batch = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Trial:
    """The timing of one variant of an update, on the slowest rank.

    Attributes:
      seconds: median duration of an update.
      warm_up_seconds: how much longer the first updates took; with XLA, mostly compilation.
      clusters: number of compiled clusters that ran.
    """

    seconds: float
    warm_up_seconds: float
    clusters: int


def seconds_per_update(job: Job) -> float:
    """Estimates the duration of an update from that of a single micro batch. Collective.

    With ramps, estimates the largest updates.
    """
    batch = dataclasses.replace(job.plan.batch.at_full_size(), accumulation_steps=1)
    one = job.with_plan(dataclasses.replace(job.plan, batch=batch))
    with user_errors():
        trial = time_updates(one, typical_batch(one), warm_up_updates=2, fewest_updates=2)
    return job.plan.batch.accumulation_steps * trial.seconds


def time_updates(
    job: Job,
    batch: Batch,
    *,
    warm_up_updates: int = _WARM_UP_UPDATES,
    fewest_updates: int = _FEWEST_UPDATES,
    timed_seconds: float = 2.0,
) -> Trial:
    """Times updates of a fresh network, all on the same batch. Collective.

    Times updates for about ``timed_seconds``, and at least ``fewest_updates`` of them, after two or
    more ``warm_up_updates``.
    """
    metadata = tf.RunMetadata()
    with tf.Graph().as_default():
        fed = {
            name: tf.placeholder(spec.dtype, spec.shape)
            for name, spec in job.train_input().element_spec.items()
        }
        network = create_network(job.task, job.plan.arithmetic.options, seed=job.settings.seed)
        outputs = build_update(job, network, fed)
        initial_values = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        feed = {fed[name]: value for name, value in batch.items()}
        with tf.Session(config=session_config(job.plan.arithmetic.session)) as session:

            def update(**options: Any) -> float:
                started = time.perf_counter()
                session.run(outputs.train_op, feed, **options)
                return time.perf_counter() - started

            session.run(initial_values)
            first = update(options=traced(), run_metadata=metadata)
            *others, last = (update() for _ in range(warm_up_updates - 1))
            estimated = math.ceil(timed_seconds / last)
            updates = min(max(estimated, fewest_updates), _MOST_UPDATES)
            seconds = [update() for _ in range(job.run.ranks.broadcast(updates))]
    median = statistics.median(seconds)
    warm_up = max(0.0, first + sum(others) + last - warm_up_updates * median)
    trials = job.run.ranks.gather((median, warm_up, count_compiled_clusters(metadata)))
    return Trial(*map(max, zip(*trials)))


def typical_batch(job: Job) -> Batch:
    """The batch of median size among the next batches of this rank."""
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(job.plan.arithmetic.session)) as session,
    ):
        dataset = job.train_input()
        shapes = [spec.shape for spec in dataset.element_spec.values()]
        are_static = all(shape.is_fully_defined() for shape in shapes)
        iterator = tf.data.make_initializable_iterator(dataset.take(1 if are_static else _BATCHES))
        next_batch = iterator.get_next()
        session.run(iterator.initializer)
        batches = []
        while True:
            try:
                batches.append(session.run(next_batch))
            except tf.errors.OutOfRangeError:
                break
    batches.sort(key=lambda batch: sum(value.size for value in batch.values()))
    return batches[len(batches) // 2]


def describe_conditions(job: Job) -> str:
    """Describes what a timing depends on, so that a resumed run knows whether to reuse it."""
    threads, options = job.run.ranks.threads, job.plan.arithmetic.options
    form = "native" if options.native_layers else "TensorFlow's"
    return (
        f"{socket.gethostname()}, {threads} threads a rank, {job.plan.batch.arithmetic()}, "
        f"length {job.data.training.max_seq_length}, dense {options.policy.dense.name}, "
        f"{form} layers"
    )
