"""--use_xla=auto: times the job's update with and without XLA, and uses the faster variant.

Both are built, warmed up and timed in turn, each in a graph and session of its own that is released
before the next. They start from fresh weights and train on one of the run's next batches, which the
run reads again: the run is bit-equal to one with the flag given explicitly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.input.batches import user_errors
from bert_tf.train.job import Job
from bert_tf.train.update_timing import Trial, describe_conditions, time_updates, typical_batch
from bert_tf.train.xla import compile_first_cluster
from bert_tf.tuning.session import session_config
from bert_tf.util.errors import first_line


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice and its reasons.

    Attributes:
      use_xla: whether the run uses XLA.
      sentence: the choice and its reason, for the terminal.
      details: choice and measurements, for the ledger.
    """

    use_xla: bool
    sentence: str
    details: dict[str, Any]


def choose_xla(job: Job, *, earlier: Mapping[str, Any] | None) -> Choice:
    """Chooses whether ``job`` should be trained with XLA. Collective.

    Args:
      job: the job, without XLA.
      earlier: rank 0's details of the choice that the run to resume recorded, or None; reused if
        the conditions are the same.
    """
    job = job.with_plan(job.plan.at_full_size())
    conditions = job.run.ranks.broadcast(describe_conditions(job))
    earlier = job.run.ranks.broadcast(earlier)
    if earlier is not None and earlier.get("conditions") == conditions:
        kept = bool(earlier["kept"])
        return Choice(kept, f"{_verdict(kept)}, as when this run began", dict(earlier))
    job_with_xla = job.with_plan(job.plan.with_xla())
    problem = _problem_with_xla(job_with_xla)
    if problem is not None:
        return _without_trial(conditions, f"XLA does not work here ({problem})")
    with user_errors():
        batch = typical_batch(job)
        without = time_updates(job, batch)
        with_xla = time_updates(job_with_xla, batch)
    if not with_xla.clusters:
        return _without_trial(conditions, "XLA finds nothing to compile here")
    return decide(
        without,
        with_xla,
        updates=job.plan.steps.last_step - job.run.start.step,
        global_batch_size=job.plan.batch.global_batch_size,
        conditions=conditions,
    )


def decide(
    without: Trial, with_xla: Trial, *, updates: int, global_batch_size: int, conditions: str
) -> Choice:
    """Chooses the variant in which warm-up and ``updates`` updates take less time."""
    total, total_with_xla = (
        trial.warm_up_seconds + updates * trial.seconds for trial in (without, with_xla)
    )
    use_xla = total_with_xla < total
    rates = [global_batch_size / trial.seconds for trial in (without, with_xla)]
    compiling = max(0.0, with_xla.warm_up_seconds - without.warm_up_seconds)
    details = {
        "asked": "auto",
        "kept": use_xla,
        "sequences_per_second_without": round(rates[0], 3),
        "sequences_per_second_with": round(rates[1], 3),
        "compile_seconds": round(compiling, 2),
        "clusters": with_xla.clusters,
        "updates": updates,
        "conditions": conditions,
    }
    sentence = (
        f"{_verdict(use_xla)}: {rates[0]:.4g} sequences/s without it and {rates[1]:.4g} with "
        f"it, after {compiling:.1f} s of compiling, for {updates} updates"
    )
    return Choice(use_xla, sentence, details)


def _problem_with_xla(job: Job) -> str | None:
    """The reason why XLA cannot compile on some rank; None if it works on all."""
    problem = None
    try:
        compile_first_cluster(session_config(job.plan.arithmetic.session))
    except tf.errors.OpError as error:
        problem = first_line(error)
    return next(filter(None, job.run.ranks.gather(problem)), None)


def _without_trial(conditions: str, reason: str) -> Choice:
    details = {"asked": "auto", "kept": False, "reason": reason, "conditions": conditions}
    return Choice(False, f"{_verdict(False)}: {reason}", details)


def _verdict(use_xla: bool) -> str:
    return f"--use_xla=auto: XLA is {'on' if use_xla else 'off'}"
