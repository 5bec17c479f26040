"""One update: the order of everything that happens to a gradient, in one place."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.sums import Sums, flatten, num_sums, unflatten
from bert_tf.model.task import Features, Network
from bert_tf.ranks.distribution import SingleProcess, as_tables
from bert_tf.update.accumulation import accumulate_gradients
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import DynamicLossScale, NoLossScale
from bert_tf.update.optimizers import Optimizer, clip_factor
from bert_tf.update.state import create_count

# Both are int64 scalars that checkpoints hold.
SKIPPED_UPDATES = "training/skipped_updates"
CONSUMED_SEQUENCES = "training/consumed_sequences"


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """How gradients become an update.

    Attributes:
      clip_norm: largest global norm of the gradient; None leaves it alone.
      loss_normalization: ``global_batch`` divides each term by its weight in the whole global
        batch, so that the update does not depend on how the batch is cut; ``micro_batch`` divides
        by that of each micro batch and averages, as google-research/bert does with its only one.
      allreduce_every_micro_batch: communicate after each micro batch and not once an update; it
        exists to measure what the delay is worth.
      most_rows: rows of a table that a micro batch looks up at most; None where its shape tells.
      seed: of dropout.
    """

    clip_norm: float | None = 1.0
    loss_normalization: str = "global_batch"
    allreduce_every_micro_batch: bool = False
    most_rows: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class TrainOutputs:
    """What hooks may fetch. ``term_sums`` are this rank's; all else is equal on every rank.

    Attributes:
      train_op: runs the whole update; global_step tells whether it counted.
      term_sums: term -> sums over this rank's part of the global batch.
      is_finite: bool scalar, whether the update was applied.
      gradient_norm: float32 scalar, global norm before clipping.
      learning_rate: float32 scalar of this update.
      loss_scale: float32 scalar of this update.
      gradients: reduced, unscaled and clipped, in the order of the trainable variables without
        frozen ones; only computed where they are fetched.
    """

    train_op: tf.Operation
    term_sums: dict[str, Sums]
    is_finite: tf.Tensor
    gradient_norm: tf.Tensor
    learning_rate: tf.Tensor
    loss_scale: tf.Tensor
    gradients: list[tf.Tensor]


def build_train_op(
    network: Network,
    features: Features,
    *,
    plan: BatchPlan,
    optimizer: Optimizer,
    learning_rate: tf.Tensor,
    loss_scale: NoLossScale | DynamicLossScale,
    ranks: SingleProcess,
    settings: UpdateSettings,
) -> TrainOutputs:
    """Builds one update from the features of one rank, [accumulation steps x micro batch, ...].

    Trains the network's trainable variables, and nothing else that the graph may hold.
    ``learning_rate`` must be the tensor that ``optimizer`` uses.
    Gradients stay scaled until they are summed over ranks: small ones survive communication in half
    precision, and the check for overflow comes out the same on every rank.
    """
    task, variables = network.task, optimizer.trained(network.variables.trainable())
    global_step = tf.train.get_or_create_global_step()
    # The data position of an update is global_step plus the number of skipped ones: a skipped
    # update consumed its data, and a resumed run must not see them again. The sequences tell where
    # in the data to go on with another global batch.
    skipped_updates = create_count(SKIPPED_UPDATES)
    consumed_sequences = create_count(CONSUMED_SEQUENCES)
    data_position = global_step + skipped_updates
    denominators = _denominators(task, features, plan, ranks, settings)

    def micro_batch(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = index * plan.micro_batch_size
        part = {name: _slice(value, start, plan) for name, value in features.items()}
        first_example = ranks.rank * plan.rank_batch_size + start
        dropout = Dropout(
            settings.seed,
            data_position=data_position,
            first_example=tf.cast(first_example, tf.int64),
        )
        sums = network.losses(part, dropout=dropout)
        loss = tf.add_n([sums[t].loss / denominators(t, sums) for t in task.terms])
        return loss_scale.scale(loss), tf.stack(flatten(sums, task.terms))

    # With one micro batch each and once come to the same, but its gradients travel one by one, as
    # the backward pass makes them, and perhaps as rows.
    one_by_one = settings.allreduce_every_micro_batch or plan.accumulation_steps == 1

    def reduce(gradients):
        return ranks.sum_gradients(
            gradients, variables, complete_at_once=not one_by_one, most_rows=settings.most_rows
        )

    each, once = (reduce, list) if one_by_one else (as_tables, reduce)
    gradients, metrics = accumulate_gradients(
        micro_batch,
        accumulation_steps=plan.accumulation_steps,
        num_metrics=num_sums(task.terms),
        variables=variables,
        reduce=each,
        add=optimizer.kernels.add,
    )
    gradients = once(gradients)
    for gradient, variable in zip(gradients, variables):
        gradient.set_shape(variable.shape)
    # Unscaling and clipping are one factor, which the optimizer applies as it reads the gradients.
    factor = loss_scale.inverse()
    scaled_norm = optimizer.kernels.global_norm(gradients)
    norm = times(scaled_norm, factor)
    if settings.clip_norm is not None:
        factor = times(factor, clip_factor(norm, settings.clip_norm))
    # Of finite gradients, too, the second moment may overflow, or the factor be no number.
    is_finite = tf.is_finite(tf.square(scaled_norm))
    if factor is not None:
        is_finite &= tf.is_finite(factor)

    # What describes this update must be read before the update changes it.
    used_scale = tf.identity(loss_scale.current())
    with tf.control_dependencies([data_position, learning_rate, used_scale]):
        apply = tf.cond(
            is_finite,
            lambda: _as_bool(
                optimizer.apply_gradients(
                    list(zip(gradients, variables)), global_step, factor=factor
                )
            ),
            lambda: _as_bool(skipped_updates.assign_add(1).op),
        )
        consume = consumed_sequences.assign_add(plan.global_batch_size).op
        train_op = tf.group(apply, loss_scale.update(is_finite), consume)
    return TrainOutputs(
        train_op=train_op,
        term_sums=unflatten(tf.unstack(metrics, num=num_sums(task.terms)), task.terms),
        is_finite=is_finite,
        gradient_norm=norm,
        learning_rate=learning_rate,
        loss_scale=used_scale,
        gradients=[times(gradient, factor) for gradient in gradients],
    )


def _denominators(task, features, plan, ranks, settings):
    """A function of (term, the micro batch's sums): what that term's loss is divided by."""
    if settings.loss_normalization == "micro_batch":
        parts = float(plan.accumulation_steps * plan.world_size)
        return lambda term, sums: tf.maximum(sums[term].weight, 1e-5) * parts
    weights = task.weights(features)
    local = tf.stack([weights[term] for term in task.terms])
    total = tf.unstack(ranks.sum_over_ranks(local, name="term_weights"), num=len(task.terms))
    # A global batch without a single masked word has a loss of zero, not of zero by zero.
    known = {term: tf.maximum(value, 1e-5) for term, value in zip(task.terms, total)}
    return lambda term, _: known[term]


def _slice(value: tf.Tensor, start: tf.Tensor, plan: BatchPlan) -> tf.Tensor:
    if plan.accumulation_steps == 1:
        return value
    part = value[start : start + plan.micro_batch_size]
    part.set_shape([plan.micro_batch_size, *value.shape[1:]])
    return part


def _as_bool(operation: tf.Operation) -> tf.Tensor:
    """tf.cond's branches must return tensors of one type."""
    with tf.control_dependencies([operation]):
        return tf.constant(True)
