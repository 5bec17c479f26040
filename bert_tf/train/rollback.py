"""Rolls back to the last good checkpoint when updates remain non-finite.

As in Chowdhery et al. (2022, "PaLM", section 5.1), a run returns to an earlier checkpoint and does
not repeat the batches between it and the failure: it continues with the batch after the last one
that was skipped. Here the learning rate is lowered too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoint.directory import go_back_to, listed_checkpoints, step_of
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint
from bert_tf.train.job import Job
from bert_tf.train.rollback_record import Rollback, read_rollbacks, write_rollbacks
from bert_tf.train.skipped import NonFiniteError
from bert_tf.train.start_point import StartPoint, find_start
from bert_tf.util.errors import UserError


def roll_back(job: Job, failure: NonFiniteError) -> Job:
    """The job that continues from an earlier checkpoint. Collective.

    Raises ``failure`` if the run's settings do not ask for roll-backs, and UserError if there is no
    checkpoint to return to or the run was rolled back too often.
    """
    run = job.run
    factor = run.settings.recovery.rollback_rate_factor
    if factor is None:
        raise failure
    outcome = _roll_back(job, failure, factor) if run.ranks.is_chief else None
    outcome = run.ranks.broadcast(outcome)
    if isinstance(outcome, str):
        raise UserError(outcome) from failure
    return dataclasses.replace(job, run=dataclasses.replace(run, start=outcome))


def _roll_back(job: Job, failure: NonFiniteError, factor: float) -> StartPoint | str:
    """The new start, or the reason why there is none."""
    run, settings = job.run, job.settings
    output_dir, before = settings.output_dir, read_rollbacks(settings.output_dir)
    if len(before) >= settings.recovery.max_rollbacks:
        return (
            f"{failure.facts}; after {len(before)} roll-backs, no more are allowed "
            f"(--max_rollbacks): {failure.advice}"
        )
    good = last_good(listed_checkpoints(output_dir), before)
    if good is None:
        return (
            f"{failure.facts}; no checkpoint in {output_dir} has finite weights only, so there is "
            f"none to roll back to: {failure.advice}"
        )
    rollback = Rollback(
        step=step_of(good),
        failed_step=failure.skipped.step,
        data_position=failure.skipped.data_position + 1,
        consumed_sequences=failure.skipped.consumed_sequences,
        rate_factor=factor * (before[-1].rate_factor if before else 1.0),
    )
    # The record comes first: once it is written, a restarted run does the rest.
    write_rollbacks(output_dir, [*before, rollback])
    go_back_to(output_dir, rollback.step)
    if run.log is not None:
        run.log.resume(rollback.step)
    run.message(
        f"{failure.facts}; rolled back to {good} ({failure.skipped.step - rollback.step} updates "
        f"are lost), the learning rate is multiplied by {factor:g} ({rollback.rate_factor:g} of "
        "the schedule's), and training continues with the batch after the last skipped one "
        f"(roll-back {len(before) + 1} of at most {settings.recovery.max_rollbacks})"
    )
    return find_start(output_dir)


def last_good(checkpoints: Sequence[str], before: Sequence[Rollback]) -> str | None:
    """The newest checkpoint with only finite values; None if there is none.

    All were written before the consecutive skipped updates. If none was written since the last
    roll-back, the one that it returned to may already be too late, so one before it is preferred.

    Args:
      checkpoints: paths, from oldest to newest.
      before: earlier roll-backs.
    """
    newest_first = list(reversed(checkpoints))
    if before and newest_first and step_of(newest_first[0]) == before[-1].step:
        newest_first = [*newest_first[1:], newest_first[0]]
    return next((path for path in newest_first if _is_finite(path)), None)


def _is_finite(checkpoint: str) -> bool:
    try:
        file = TensorflowCheckpoint(checkpoint)
        values = (file.read(name) for name in file.entries)
        return all(np.isfinite(value).all() for value in values if value.dtype.kind == "f")
    except UserError:  # it cannot be read
        return False
