"""Diagnoses a skipped update: which ranks, variables, loss terms and records are not finite.

Gradients are checked after they are summed over ranks, which does not tell where they come from. So
every rank recomputes its own, one micro batch at a time, which is possible because a skipped update
has changed no weights: they depend only on the weights, the features, and the position in training
that seeds dropout. This costs nothing while training goes well.

Some of the micro batches are saved in a directory ``nonfinite_STEP``, with two files each:
``rank_R_micro_batch_M.npz`` with its features, after masking, and a ``.json`` of the same name with
its origin and what was found in it. The latter is written last and has a hash of the former, so a
batch without a matching one was not written completely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import LEAST_WEIGHT
from bert_tf.model.precision import policy_for
from bert_tf.model.task import Network, create_network
from bert_tf.model.variables import load_value
from bert_tf.ranks.ranks import as_tables
from bert_tf.train.job import Job
from bert_tf.tuning.arithmetic import session_config
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, explain_write_errors, finite_or_null

# Per rank, so that little is written.
_MOST_SAVED = 2
_MOST_RECORDS_SHOWN = 32
_MOST_RANKS_SHOWN = 8

_HASH = "features_sha256"

Weights = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class SkippedUpdate:
    """An update that was not applied, as seen by this rank.

    Attributes:
      step: number of updates applied before it.
      data_position: the number of its global batch.
      in_a_row: number of consecutive skipped updates, including this one.
      learning_rate, loss_scale: the values in this update.
      features: this rank's part of the global batch.
    """

    step: int
    data_position: int
    in_a_row: int
    learning_rate: float
    loss_scale: float
    features: Mapping[str, np.ndarray]


class MicroBatch(NamedTuple):
    """A micro batch, with all that its gradients depend on except the weights.

    Attributes:
      number: its number among those of this rank.
      features: [micro batch, ...] each, after masking.
      first_example: the index of its first sequence in the global batch.
      denominators: the divisor of each loss term in the update.
    """

    number: int
    features: Mapping[str, np.ndarray]
    first_example: int
    denominators: Mapping[str, float]


class Gradients(NamedTuple):
    """Losses and gradients of a micro batch; a norm is not finite if any element is not.

    Attributes:
      batch: the micro batch.
      losses: the mean of each term over the micro batch.
      norms: variable -> unscaled norm of its gradient, in the order of the forward pass.
    """

    batch: MicroBatch
    losses: Mapping[str, float]
    norms: Mapping[str, float]

    @property
    def is_finite(self) -> bool:
        """Whether all losses and gradients are finite."""
        return not _not_finite(self.losses) and not _not_finite(self.norms)

    @property
    def norm(self) -> float:
        """The global norm of all gradients."""
        return math.hypot(*self.norms.values())


def _not_finite(values: Mapping[str, float]) -> list[str]:
    return [name for name, value in values.items() if not math.isfinite(value)]


class _Findings(NamedTuple):
    """What one rank found out about its part of a skipped update.

    Attributes:
      saved: the features and the description, by name, of some of the micro batches that are not
        finite; if all are finite, of the one with the largest gradient. Empty if there was not
        enough memory to find out.
      finite_in_float32: whether the first of them is finite in float32; None if not tried.
    """

    saved: Mapping[str, tuple[bytes, dict[str, Any]]]
    finite_in_float32: bool | None

    @property
    def descriptions(self) -> list[dict[str, Any]]:
        """The descriptions of the micro batches, as JSON has them."""
        return [description for _, description in self.saved.values()]

    @property
    def is_bad(self) -> bool:
        """Whether a micro batch is not finite."""
        return any(d["terms_not_finite"] or d["variables_not_finite"] for d in self.descriptions)


def explain(job: Job, network: Network, session: tf.Session, skipped: SkippedUpdate) -> str:
    """What was not finite in a skipped update, whose batch is saved on rank 0. Collective.

    ``network`` is the training graph's; its weights are read from ``session``.
    """
    ranks = job.run.ranks
    batches = _micro_batches(job, skipped)
    try:
        weights = session.run({v.op.name: v for v in network.variables.all()})
        findings = _examine(job, batches, weights, skipped)
    except tf.errors.ResourceExhaustedError:
        findings = _Findings({}, None)
    everywhere = ranks.gather(findings)
    where = ""
    batches_to_save = {name: batch for found in everywhere for name, batch in found.saved.items()}
    if ranks.is_chief and batches_to_save:
        try:
            directory = save_batches(job.settings.output_dir, skipped.step, batches_to_save)
            where = f"; the batch is in {directory}"
        except UserError as error:
            where = f"; the batch could not be saved: {error}"
    row = f", one of {skipped.in_a_row} skipped in a row" if skipped.in_a_row > 1 else ""
    scale = f", loss scale {skipped.loss_scale:g}" if job.arithmetic.scales_loss else ""
    return (
        f"the loss or a gradient is not finite in the update after step {skipped.step}{row} "
        f"(learning rate {skipped.learning_rate:.3g}{scale}): {_sentence(everywhere)}{where}"
    )


def _micro_batches(job: Job, skipped: SkippedUpdate) -> list[MicroBatch]:
    """Splits this rank's part of a global batch into micro batches. Collective."""
    plan, ranks, terms = job.plan.batch, job.run.ranks, job.task.terms
    size, rank_batch_size = plan.micro_batch_size, len(next(iter(skipped.features.values())))
    parts = [
        {name: value[start : start + size] for name, value in skipped.features.items()}
        for start in range(0, rank_batch_size, size)
    ]
    weights = _term_weights(job, parts)
    if job.plan.requested.batch.loss_normalization == "micro_batch":
        divisor = float(len(parts) * plan.world_size)
        denominators = [_denominators(of_part, divisor) for of_part in weights]
    else:
        of_ranks = ranks.gather({t: sum(of_part[t] for of_part in weights) for t in terms})
        total = {term: sum(of_rank[term] for of_rank in of_ranks) for term in terms}
        denominators = [_denominators(total, 1.0)] * len(parts)
    first = ranks.rank * rank_batch_size
    return [
        MicroBatch(number, part, first + number * size, denominators[number])
        for number, part in enumerate(parts)
    ]


def _denominators(weights: Mapping[str, float], factor: float) -> dict[str, float]:
    return {term: max(weight, LEAST_WEIGHT) * factor for term, weight in weights.items()}


def _term_weights(job: Job, parts: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, float]]:
    """The weight of each loss term in each part of a batch."""
    config = session_config(job.arithmetic.session)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        fed = _placeholders(parts[0])
        weights = job.task.weights(fed)
        values = [session.run(weights, _feed(fed, part)) for part in parts]
    return [{term: float(weight) for term, weight in of_part.items()} for of_part in values]


def _examine(
    job: Job, batches: Sequence[MicroBatch], weights: Weights, skipped: SkippedUpdate
) -> _Findings:
    gradients = gradients_of(job, batches, weights, skipped)
    bad = [one for one in gradients if not one.is_finite]
    suspects = bad[:_MOST_SAVED] or [max(gradients, key=lambda one: one.norm)]
    finite_in_float32 = None
    if job.arithmetic.options.policy != policy_for("fp32"):
        first = [suspects[0].batch]
        [again] = gradients_of(job, first, weights, skipped, in_float32=True)
        finite_in_float32 = again.is_finite
    names = [f"rank_{job.run.ranks.rank}_micro_batch_{one.batch.number}" for one in suspects]
    saved = {name: _to_save(job, skipped, one) for name, one in zip(names, suspects)}
    return _Findings(saved, finite_in_float32)


def gradients_of(
    job: Job,
    micro_batches: Sequence[MicroBatch],
    weights: Weights,
    skipped: SkippedUpdate,
    *,
    in_float32: bool = False,
) -> list[Gradients]:
    """The losses and gradients of micro batches of equal shape, in the job's precision or float32.

    Raises tf.errors.ResourceExhaustedError if there is not enough memory for a second copy of the
    weights, which are values by name, and for the passes.
    """
    options = job.arithmetic.options
    policy = policy_for("fp32") if in_float32 else options.policy
    options = dataclasses.replace(options, policy=policy, compiled=False)
    config = session_config(job.arithmetic.session)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        network = create_network(job.task, options)
        fed = _placeholders(micro_batches[0].features)
        first_example, scale = tf.placeholder(tf.int64, []), tf.placeholder(tf.float32, [])
        position = tf.constant(skipped.data_position, tf.int64)
        divisors = {term: tf.placeholder(tf.float32, []) for term in job.task.terms}
        dropout = Dropout(job.settings.seed, data_position=position, first_example=first_example)
        sums = network.losses(fed, dropout=dropout)
        losses = {t: s.loss / tf.maximum(s.weight, LEAST_WEIGHT) for t, s in sums.items()}
        objective = scale * tf.add_n([sums[term].loss / divisors[term] for term in divisors])
        rate_factor = job.plan.requested.rate_factor
        trained = [v for v in network.variables.trainable() if rate_factor(v.op.name)]
        # Squares of float32 numbers are always finite in float64.
        wide = [tf.cast(g, tf.float64) for g in as_tables(tf.gradients(objective, trained))]
        norms = [tf.sqrt(tf.reduce_sum(tf.square(gradient))) for gradient in wide]
        for variable in network.variables.all():
            load_value(variable, weights[variable.op.name], session)
        names, results = [variable.op.name for variable in trained], []
        for batch in micro_batches:
            feed = {
                **_feed(fed, batch.features),
                **_feed(divisors, batch.denominators),
                first_example: batch.first_example,
                scale: skipped.loss_scale,
            }
            of_terms, of_variables = session.run([losses, norms], feed)
            unscaled = np.array(of_variables) / skipped.loss_scale
            means = {term: float(loss) for term, loss in of_terms.items()}
            results.append(Gradients(batch, means, dict(zip(names, unscaled.tolist()))))
    return results


def _placeholders(features: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.placeholder(value.dtype, value.shape) for name, value in features.items()}


def _feed(fed: Mapping[str, tf.Tensor], values: Mapping[str, object]) -> dict[tf.Tensor, object]:
    return {tensor: values[name] for name, tensor in fed.items()}


def _to_save(job: Job, skipped: SkippedUpdate, one: Gradients) -> tuple[bytes, dict[str, Any]]:
    """The features of a micro batch as an .npz file, and its description as JSON has it."""
    run, size, batch = job.run, job.plan.batch.micro_batch_size, one.batch
    start = batch.number * size
    of_rank = job.training.records_at(run, job.plan, skipped.data_position)
    buffer = io.BytesIO()
    # Any: NumPy's types take each keyword for a possible allow_pickle.
    arrays: Mapping[str, Any] = batch.features
    np.savez_compressed(buffer, **arrays)
    description = {
        "step": skipped.step,
        "rank": run.ranks.rank,
        "world_size": run.ranks.world_size,
        "micro_batch": batch.number,
        "learning_rate": skipped.learning_rate,
        "skipped_in_a_row": skipped.in_a_row,
        "seed": run.settings.seed,
        "precision": job.arithmetic.precision,
        "losses": dict(one.losses),
        "terms_not_finite": _not_finite(one.losses),
        "variables_not_finite": _not_finite(one.norms),
        "gradient_norm": one.norm,
        "records": [{"file": f, "record": n} for f, n in of_rank[start : start + size]],
        "flags": dict(run.flags),
        "data_position": skipped.data_position,
        "first_example": batch.first_example,
        "denominators": dict(batch.denominators),
        "loss_scale": skipped.loss_scale,
        _HASH: digest_of(buffer.getvalue()),
    }
    return buffer.getvalue(), json.loads(json.dumps(finite_or_null(description)))


def save_batches(
    output_dir: Path, step: int, batches: Mapping[str, tuple[bytes, dict[str, Any]]]
) -> Path:
    """Saves micro batches of the update after ``step`` in a new directory of ``output_dir``.

    Existing directories are never changed: if one already has the very same batches, for example
    because the run was started again, nothing is written. Returns the directory; raises UserError
    if it cannot be written.
    """
    descriptions = {name: description for name, (_, description) in batches.items()}
    for number in itertools.count(1):
        directory = output_dir / (f"nonfinite_{step}" + (f"_{number}" if number > 1 else ""))
        if not directory.exists():
            break
        if _descriptions_in(directory) == descriptions:
            return directory
    with explain_write_errors(directory):
        directory.mkdir()
    for name, (features, description) in batches.items():
        with atomic_open(directory / f"{name}.npz", "wb") as file:
            file.write(features)
        write_sealed_json(directory / f"{name}.json", description)
    return directory


def _descriptions_in(directory: Path) -> dict[str, Any]:
    """The descriptions in a directory by name; None for those that cannot be read."""
    descriptions: dict[str, Any] = dict.fromkeys(path.stem for path in directory.glob("*.json"))
    for name in descriptions:
        with contextlib.suppress(UserError):
            path = directory / f"{name}.json"
            descriptions[name] = read_sealed_json(path, what="saved batch", advice="copy it again")
    return descriptions


def _sentence(everywhere: Sequence[_Findings]) -> str:
    """Which ranks are affected, and what the first of them found."""
    bad = [(rank, found) for rank, found in enumerate(everywhere) if found.is_bad]
    if not bad:
        if not all(found.saved for found in everywhere):
            return "there is not enough memory to recompute them"
        largest = max(found.descriptions[0]["gradient_norm"] for found in everywhere)
        return (
            f"all are finite on every rank before they are added up, with norms up to {largest:.3g}"
        )
    where, (first_rank, first) = "", bad[0]
    if len(everywhere) > 1:
        shown = ", ".join(str(rank) for rank, _ in bad[:_MOST_RANKS_SHOWN])
        more = f" and {len(bad) - _MOST_RANKS_SHOWN} more" * (len(bad) > _MOST_RANKS_SHOWN)
        where = f"on rank {shown}{more}" + f", there first on rank {first_rank}" * (len(bad) > 1)
        where += ": "
    in_float32 = {
        None: "",
        True: "; in float32 all of it is finite, so the precision or the loss scale is to blame",
        False: "; it is not finite in float32 either",
    }
    description = first.descriptions[0]
    terms, variables = description["terms_not_finite"], description["variables_not_finite"]
    parts = [f"the loss ({', '.join(terms)})"] if terms else []
    if variables:
        others = f" and of {len(variables) - 1} variables after it" * (len(variables) > 1)
        parts.append(f"the gradient of {variables[0]}{others}")
    return (
        f"{where}{' and '.join(parts)}{_listed(description['records'])}"
        f"{in_float32[first.finite_in_float32]}"
    )


def _listed(records: Sequence[Mapping[str, Any]]) -> str:
    """A batch's records by file; empty if they are unknown."""
    by_file: dict[str, list[str]] = {}
    for record in records[:_MOST_RECORDS_SHOWN]:
        by_file.setdefault(record["file"], []).append(str(record["record"]))
    if not by_file:
        return ""
    listed = " and ".join(f"{', '.join(numbers)} of {file}" for file, numbers in by_file.items())
    more = len(records) - _MOST_RECORDS_SHOWN
    return f", with records {listed}" + (f" and {more} more" if more > 0 else "")
