"""--replay_batch: recomputes a saved batch's losses and gradients, to see why they failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.task import create_network
from bert_tf.train.gradient_check import Gradients, gradients_of, is_in_float32
from bert_tf.train.job import Job
from bert_tf.train.saved_batch import SavedBatch, read_batches
from bert_tf.train.trainer import initialise_weights
from bert_tf.tuning.session import session_config
from bert_tf.util.errors import UserError

_MOST_SHOWN = 5


def replay(job: Job, path: Path) -> None:
    """Reports what rank 0 computes for the micro batches in ``path``; writes nothing. Collective.

    The weights are those that the job would start from. Raises UserError if files are not a saved
    batch, or one of another task.
    """
    run = job.run
    if run.ranks.is_chief:
        saved = read_batches(path)
        for batch in saved:
            _check_features(job, batch)
        weights = starting_weights(job)
        for batch in saved:
            run.message(_describe(job, batch))
            found = _gradients(job, batch, weights)
            precision = job.plan.arithmetic.precision
            run.message(f"in {precision}: {describe_gradients(found)}")
            if not is_in_float32(job):
                found = _gradients(job, batch, weights, in_float32=True)
                run.message(f"in fp32: {describe_gradients(found)}")
        run.message("a batch was replayed: nothing was trained or written")
    run.ranks.gather(None)  # a barrier: the other ranks wait


def starting_weights(job: Job) -> dict[str, np.ndarray]:
    """The weights that a job would start from, by the names of the network's variables."""
    start = job.run.start
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(job.plan.arithmetic.session)) as session,
    ):
        network = create_network(job.task, job.plan.arithmetic.options, seed=job.settings.seed)
        initialise_weights(job, network)
        session.run(tf.global_variables_initializer())
        if start.checkpoint is not None:
            tf.train.Saver(network.variables.trainable()).restore(session, start.checkpoint)
        return session.run({v.op.name: v for v in network.variables.all()})


def _check_features(job: Job, saved: SavedBatch) -> None:
    """Raises UserError if the job's network cannot read a batch."""
    expected = job.train_input().element_spec
    found = saved.batch.features
    fits = found.keys() == expected.keys() and all(
        value.dtype == expected[name].dtype.as_numpy_dtype
        and expected[name].shape[1:].is_compatible_with(value.shape[1:])
        for name, value in found.items()
    )
    if not fits or saved.batch.denominators.keys() != set(job.task.terms):
        raise UserError(
            f"--replay_batch: {saved.path} was not saved by a run of this task and these flags; "
            "give those of the run, which are in the file."
        )


def _gradients(
    job: Job, saved: SavedBatch, weights: Mapping[str, np.ndarray], *, in_float32: bool = False
) -> Gradients:
    """The gradients of the saved batch, with the dropout of its run."""
    settings = dataclasses.replace(job.settings, seed=saved.facts["seed"])
    job = dataclasses.replace(job, run=dataclasses.replace(job.run, settings=settings))
    [found] = gradients_of(job, [saved.batch], weights, in_float32=in_float32)
    return found


def _describe(job: Job, saved: SavedBatch) -> str:
    start = job.run.start
    weights = "random weights"
    if start.checkpoint is not None:
        weights = f"the weights of {start.checkpoint} (step {start.step})"
    elif job.model.initial.checkpoint:
        weights = f"the weights of {job.model.initial.checkpoint}"
    return (
        f"{saved.path}: {len(saved.facts['records'])} records of the update after step "
        f"{saved.facts['step']}, loss scale {saved.batch.loss_scale:g}, with {weights}"
    )


def describe_gradients(found: Gradients) -> str:
    """Losses, the global norm, and the largest norms or the first that are not finite."""
    losses = "  ".join(f"{term}_loss {loss:.6g}" for term, loss in found.losses.items())
    bad = found.bad_variables
    if bad:
        more = f" and {len(bad) - _MOST_SHOWN} more" * (len(bad) > _MOST_SHOWN)
        listed = f"not finite: {', '.join(bad[:_MOST_SHOWN])}{more}"
    else:
        largest = sorted(found.norms, key=found.norms.__getitem__, reverse=True)[:_MOST_SHOWN]
        listed = "largest norms: " + ", ".join(
            f"{name} {found.norms[name]:.3g} (largest value {found.largest[name]:.3g})"
            for name in largest
        )
    return f"{losses}  gradient_norm {found.norm:.6g}; {listed}"
