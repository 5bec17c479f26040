"""Trains google-research/bert: its own input, model and optimizer, in a plain session."""

from __future__ import annotations

import contextlib
import glob
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from benchmarks.speed.google_bert import google_module, google_session, google_spec
from benchmarks.speed.records import run_google
from benchmarks.speed.steps import Recipe
from benchmarks.to_loss.trainings import TrainingJob, run_updates


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Trains with the settings ``amp``, ``batch_size``, ``learning_rate`` and ``warmup_share``.

    Returns the result of run_updates.
    """
    job, settings = TrainingJob.from_json(request), request["settings"]
    checkout = Path(settings["google_bert_dir"])
    with google_session(job.threads, amp=settings["amp"], seed=job.seed) as session:
        read = google_module(checkout, "run_pretraining").input_fn_builder(
            sorted(glob.glob(job.data["google_records"])),
            job.seq_length,
            job.predictions,
            is_training=True,
        )
        batches = read({"batch_size": settings["batch_size"]})
        recipe = Recipe(
            learning_rate=settings["learning_rate"],
            steps=job.updates,
            warmup_steps=round(settings["warmup_share"] * job.updates),
        )
        spec = google_spec(
            checkout,
            "run_pretraining",
            job.network,
            tf.data.make_one_shot_iterator(batches).get_next(),
            tf.estimator.ModeKeys.TRAIN,
            recipe=recipe,
        )
        saver = tf.train.Saver(tf.trainable_variables(), max_to_keep=None)
        session.run(tf.global_variables_initializer())
        run = session.make_callable([spec.loss, spec.train_op])
        return run_updates(
            job,
            lambda: float(run()[0]),
            lambda number: saver.save(session, job.checkpoint_path(number), write_meta_graph=False),
            started=request["started"],
        )


def make_records(request: Mapping[str, Any]) -> dict[str, Any]:
    """Runs its create_pretraining_data with ``flags`` of the job; returns ``seconds``."""
    start = time.monotonic()
    with contextlib.redirect_stderr(io.StringIO()):
        run_google(request["settings"], request["flags"])
    return {"seconds": time.monotonic() - start}
