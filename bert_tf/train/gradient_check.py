"""Recomputes the gradients of single micro batches outside the training graph.

They depend only on the weights, the features, and the position in training that seeds dropout. A
skipped update changes no weights, so its gradients can be computed again, on one rank and without
communication.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.sums import LEAST_WEIGHT
from bert_tf.model.task import create_network
from bert_tf.model.variables import load_value
from bert_tf.ranks.ranks import as_tables
from bert_tf.train.job import Job
from bert_tf.tuning.session import SessionSettings, session_config


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """A micro batch, with all that its gradients depend on except the weights.

    Attributes:
      features: [micro batch, ...] each, after masking.
      data_position: the number of its global batch.
      first_example: the index of its first sequence in the global batch.
      denominators: the divisor of each loss term in the update.
      loss_scale: the factor on the loss; 1 without loss scaling.
    """

    features: Mapping[str, np.ndarray]
    data_position: int
    first_example: int
    denominators: Mapping[str, float]
    loss_scale: float


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Losses and gradients of a micro batch; a norm is not finite if any element is not.

    Attributes:
      losses: the mean of each term over the micro batch.
      norms: variable -> unscaled norm of its gradient, in the order of the forward pass.
    """

    losses: Mapping[str, float]
    norms: Mapping[str, float]

    @property
    def bad_terms(self) -> list[str]:
        """The terms whose loss is not finite."""
        return [term for term, loss in self.losses.items() if not math.isfinite(loss)]

    @property
    def bad_variables(self) -> list[str]:
        """The variables whose gradient is not finite."""
        return [name for name, norm in self.norms.items() if not math.isfinite(norm)]

    @property
    def is_finite(self) -> bool:
        """Whether all losses and gradients are finite."""
        return not self.bad_terms and not self.bad_variables

    @property
    def norm(self) -> float:
        """The global norm of all gradients."""
        return math.hypot(*self.norms.values())


def micro_batches_of(
    job: Job, features: Mapping[str, np.ndarray], *, data_position: int, loss_scale: float
) -> list[MicroBatch]:
    """Splits this rank's part of a global batch into micro batches. Collective.

    Args:
      job: the job that trains on the batch.
      features: [accumulation steps x micro batch, ...] each.
      data_position: the number of the global batch.
      loss_scale: the loss scale of the update.
    """
    plan, ranks = job.plan.batch, job.run.ranks
    size, rank_batch_size = plan.micro_batch_size, len(next(iter(features.values())))
    parts = [
        {name: value[start : start + size] for name, value in features.items()}
        for start in range(0, rank_batch_size, size)
    ]
    weights = _term_weights(job, parts)
    if job.optimization.batch.loss_normalization == "micro_batch":
        divisor = float(len(parts) * plan.world_size)
        denominators = [_denominators(found, divisor) for found in weights]
    else:
        of_ranks = ranks.gather({t: sum(found[t] for found in weights) for t in job.task.terms})
        total = {term: sum(found[term] for found in of_ranks) for term in job.task.terms}
        denominators = [_denominators(total, 1.0)] * len(parts)
    first = ranks.rank * rank_batch_size
    return [
        MicroBatch(part, data_position, first + number * size, denominators[number], loss_scale)
        for number, part in enumerate(parts)
    ]


def _denominators(weights: Mapping[str, float], factor: float) -> dict[str, float]:
    return {term: max(weight, LEAST_WEIGHT) * factor for term, weight in weights.items()}


def _term_weights(job: Job, parts: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, float]]:
    """The weight of each loss term in each part of a batch."""
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(job.plan.arithmetic.session)) as session,
    ):
        fed = _placeholders(parts[0])
        weights = job.task.weights(fed)
        found = [session.run(weights, _feed(fed, part)) for part in parts]
    return [{term: float(weight) for term, weight in weights.items()} for weights in found]


def gradients_of(
    job: Job,
    micro_batches: Sequence[MicroBatch],
    weights: Mapping[str, np.ndarray],
    *,
    in_float32: bool = False,
) -> list[Gradients]:
    """The losses and gradients of micro batches of equal shape.

    Args:
      job: the job that trains on them.
      micro_batches: at least one.
      weights: the values of all variables of the network, by name.
      in_float32: compute in float32 rather than in the job's precision.

    Raises tf.errors.ResourceExhaustedError if there is not enough memory for a second copy of the
    weights and for the passes.
    """
    options, settings = _arithmetic(job, in_float32=in_float32)
    with tf.Graph().as_default(), tf.Session(config=session_config(settings)) as session:
        network = create_network(job.task, options)
        fed = _placeholders(micro_batches[0].features)
        place = {name: tf.placeholder(tf.int64, []) for name in ("data_position", "first_example")}
        scale = tf.placeholder(tf.float32, [])
        divisors = {term: tf.placeholder(tf.float32, []) for term in job.task.terms}
        sums = network.losses(fed, dropout=Dropout(job.settings.seed, **place))
        losses = {t: s.loss / tf.maximum(s.weight, LEAST_WEIGHT) for t, s in sums.items()}
        objective = scale * tf.add_n([sums[term].loss / divisors[term] for term in divisors])
        rate_factor = job.optimization.rate_factor
        trained = [v for v in network.variables.trainable() if rate_factor(v.op.name)]
        gradients = as_tables(tf.gradients(objective, trained))
        # Squares of float32 numbers are always finite in float64.
        wide = [tf.cast(gradient, tf.float64) for gradient in gradients]
        norms = [tf.sqrt(tf.reduce_sum(tf.square(gradient))) for gradient in wide]
        for variable in network.variables.all():
            load_value(variable, weights[variable.op.name], session)
        names, found = [variable.op.name for variable in trained], []
        for batch in micro_batches:
            feed = {
                **_feed(fed, batch.features),
                **_feed(divisors, batch.denominators),
                **_feed(place, vars(batch)),
                scale: batch.loss_scale,
            }
            of_terms, of_variables = session.run([losses, norms], feed)
            unscaled = np.array(of_variables) / batch.loss_scale
            found.append(
                Gradients(
                    {term: float(loss) for term, loss in of_terms.items()},
                    dict(zip(names, unscaled.tolist())),
                )
            )
    return found


def _arithmetic(job: Job, *, in_float32: bool) -> tuple[ForwardOptions, SessionSettings]:
    options = dataclasses.replace(job.plan.arithmetic.options, compiled=False)
    if in_float32:
        options = dataclasses.replace(options, policy=policy_for("fp32"))
    return options, job.plan.arithmetic.session


def is_in_float32(job: Job) -> bool:
    """Whether a job computes everything in float32."""
    return job.plan.arithmetic.options.policy == policy_for("fp32")


def _placeholders(features: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.placeholder(value.dtype, value.shape) for name, value in features.items()}


def _feed(fed: Mapping[str, tf.Tensor], values: Mapping[str, object]) -> dict[tf.Tensor, object]:
    return {tensor: values[name] for name, tensor in fed.items()}
