"""Diagnoses a skipped update: which ranks, variables, loss terms and records are not finite.

Gradients are checked after they are summed over ranks, which does not tell where they come from. So
every rank recomputes its own, one micro batch at a time, which is possible because a skipped update
has changed no weights. This costs nothing while training goes well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.task import Network
from bert_tf.train.gradient_check import (
    Gradients,
    MicroBatch,
    gradients_of,
    is_in_float32,
    micro_batches_of,
)
from bert_tf.train.job import Job
from bert_tf.train.saved_batch import SavedBatch, save_batches
from bert_tf.train.skipped import NonFiniteError, SkippedUpdate
from bert_tf.util.errors import UserError

# Per rank, so that little is written.
_MOST_SAVED = 2
_MOST_RECORDS_SHOWN = 32
_MOST_RANKS_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class _Findings:
    """What one rank found out about its part of a skipped update.

    Attributes:
      rank: the rank.
      problem: why nothing could be found out; empty if it could.
      gradients: those of its micro batches, in order.
      batches: some of the micro batches that are not finite; if all are finite, the one with the
        largest gradient.
      finite_in_float32: whether the first of ``batches`` is finite in float32; None if not tried.
    """

    rank: int
    problem: str = ""
    gradients: Sequence[Gradients] = ()
    batches: Sequence[SavedBatch] = ()
    finite_in_float32: bool | None = None

    @property
    def bad(self) -> list[Gradients]:
        """The gradients of micro batches that are not finite."""
        return [found for found in self.gradients if not found.is_finite]


def explain(
    job: Job, network: Network, session: tf.Session, skipped: SkippedUpdate
) -> NonFiniteError:
    """Diagnoses a skipped update, and saves its batch on rank 0. Collective.

    ``network`` is the training graph's; its weights are read from ``session``.
    """
    ranks = job.run.ranks
    batches = micro_batches_of(
        job,
        skipped.features,
        data_position=skipped.data_position,
        loss_scale=skipped.loss_scale,
    )
    try:
        weights = session.run({v.op.name: v for v in network.variables.all()})
        findings = _examine(job, batches, weights, skipped)
    except tf.errors.ResourceExhaustedError:
        findings = _Findings(ranks.rank, "there is not enough memory to recompute them")
    everywhere = ranks.gather(findings)
    saved = ""
    if ranks.is_chief:
        found = [batch for findings in everywhere for batch in findings.batches]
        saved = _save(job, skipped, found)
    return NonFiniteError(_facts_of_all(job, skipped, everywhere, saved))


def _examine(
    job: Job,
    batches: Sequence[MicroBatch],
    weights: Mapping[str, np.ndarray],
    skipped: SkippedUpdate,
) -> _Findings:
    gradients = gradients_of(job, batches, weights)
    suspects = [number for number, found in enumerate(gradients) if not found.is_finite]
    if not suspects:
        suspects = [int(np.argmax([found.norm for found in gradients]))]
    finite_in_float32 = None
    if not is_in_float32(job):
        [again] = gradients_of(job, [batches[suspects[0]]], weights, in_float32=True)
        finite_in_float32 = again.is_finite
    return _Findings(
        job.run.ranks.rank,
        gradients=gradients,
        batches=[
            SavedBatch(batches[number], _facts(job, skipped, number, gradients[number]))
            for number in suspects[:_MOST_SAVED]
        ],
        finite_in_float32=finite_in_float32,
    )


def _facts(job: Job, skipped: SkippedUpdate, number: int, found: Gradients) -> dict[str, Any]:
    """Describes a micro batch, except for what :class:`MicroBatch` has."""
    run, batch = job.run, job.plan.batch
    records: list[tuple[str, int]] = []
    if job.data.training.records is not None:
        start = number * batch.micro_batch_size
        of_rank = job.data.training.records(run, job.plan, skipped.data_position)
        records = of_rank[start : start + batch.micro_batch_size]
    return {
        "step": skipped.step,
        "rank": run.ranks.rank,
        "world_size": run.ranks.world_size,
        "micro_batch": number,
        "learning_rate": skipped.learning_rate,
        "skipped_in_a_row": skipped.in_a_row,
        "seed": run.settings.seed,
        "precision": job.plan.arithmetic.precision,
        "losses": dict(found.losses),
        "terms_not_finite": found.bad_terms,
        "variables_not_finite": found.bad_variables,
        "gradient_norm": found.norm,
        "records": [{"file": file, "record": record} for file, record in records],
        "flags": dict(run.flags),
    }


def _save(job: Job, skipped: SkippedUpdate, found: Sequence[SavedBatch]) -> str:
    """Saves batches; returns where they are, or why they could not be saved."""
    if not found:
        return ""
    try:
        directory = save_batches(job.settings.output_dir, skipped.step, found)
    except UserError as error:
        return f"; the batch could not be saved: {error}"
    return f"; the batch is in {directory}"


def _facts_of_all(
    job: Job, skipped: SkippedUpdate, everywhere: Sequence[_Findings], saved: str
) -> str:
    row = f", one of {skipped.in_a_row} skipped in a row" if skipped.in_a_row > 1 else ""
    scale = f", loss scale {skipped.loss_scale:g}" if job.plan.arithmetic.scales_loss else ""
    return (
        f"the loss or a gradient is not finite in the update after step {skipped.step}{row} "
        f"(learning rate {skipped.learning_rate:.3g}{scale}): {_where(everywhere)}{saved}"
    )


def _where(everywhere: Sequence[_Findings]) -> str:
    """Which ranks are affected, and what the first of them found."""
    bad = [findings for findings in everywhere if findings.bad]
    if not bad:
        problem = next((findings.problem for findings in everywhere if findings.problem), "")
        if problem:
            return problem
        largest = max((g for findings in everywhere for g in findings.gradients), key=_norm)
        return (
            "all are finite on every rank before they are added up, with norms up to "
            f"{largest.norm:.3g}"
        )
    first, numbers = bad[0], [str(findings.rank) for findings in bad]
    where = ""
    if len(everywhere) > 1:
        shown = ", ".join(numbers[:_MOST_RANKS_SHOWN])
        more = f" and {len(bad) - _MOST_RANKS_SHOWN} more" * (len(bad) > _MOST_RANKS_SHOWN)
        where = f"on rank {shown}{more}" + f", there first on rank {first.rank}" * (len(bad) > 1)
        where += ": "
    of_batch = first.bad[0]
    parts = []
    if of_batch.bad_terms:
        parts.append(f"the loss ({', '.join(of_batch.bad_terms)})")
    if of_batch.bad_variables:
        others = len(of_batch.bad_variables) - 1
        parts.append(
            f"the gradient of {of_batch.bad_variables[0]}"
            + (f" and of {others} variables after it" if others else "")
        )
    in_float32 = {
        None: "",
        True: "; in float32 all of it is finite, so the precision or the loss scale is to blame",
        False: "; it is not finite in float32 either",
    }
    return (
        f"{where}{' and '.join(parts)}{_records(first.batches[0])}"
        f"{in_float32[first.finite_in_float32]}"
    )


def _norm(found: Gradients) -> float:
    return found.norm


def _records(saved: SavedBatch) -> str:
    """A list of a batch's records by file; empty if they are unknown."""
    by_file: dict[str, list[str]] = {}
    records = saved.facts["records"]
    for record in records[:_MOST_RECORDS_SHOWN]:
        by_file.setdefault(record["file"], []).append(str(record["record"]))
    if not by_file:
        return ""
    listed = " and ".join(f"{', '.join(numbers)} of {file}" for file, numbers in by_file.items())
    more = len(records) - _MOST_RECORDS_SHOWN
    return f", with records {listed}" + (f" and {more} more" if more > 0 else "")
