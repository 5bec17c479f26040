"""One training update: everything that happens to the gradients, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
from bert_tf.update.shards import SlotPart
from bert_tf.update.state import create_count

# Both are int64 scalars saved in checkpoints.
SKIPPED_UPDATES = "training/skipped_updates"
CONSUMED_SEQUENCES = "training/consumed_sequences"


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """How gradients become an update.

    Attributes:
      clip_norm: largest global norm of the gradient; None disables clipping.
      loss_normalization: ``global_batch`` divides each term by its weight in the whole global
        batch, so the update does not depend on how the batch is split; ``micro_batch`` divides by
        its weight in each micro batch and averages, as google-research/bert does with its only
        one.
      allreduce_every_micro_batch: communicate after each micro batch instead of once per update,
        to measure what delaying gains.
      most_rows: the most table rows that a micro batch looks up; None if its shape determines it.
      seed: dropout seed.
    """

    clip_norm: float | None = 1.0
    loss_normalization: str = "global_batch"
    allreduce_every_micro_batch: bool = False
    most_rows: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class VariableFigures:
    """What an update tells of each trained variable; only computed if fetched.

    Attributes:
      variables: those that are trained and not frozen.
      gradient_norms: float32 [variables], of the reduced and unscaled gradients before clipping.
      trust_ratios: kind -> float32 [variables], NaN for those that are not adapted; empty for an
        optimizer without them.
    """

    variables: list[tf.Variable]
    gradient_norms: tf.Tensor
    trust_ratios: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class TrainOutputs:
    """What hooks may fetch. ``term_sums`` are this rank's; all else is equal on every rank.

    Attributes:
      train_op: runs the whole update; global_step shows whether it was applied.
      term_sums: term -> sums over this rank's part of the global batch.
      data_position: int64 scalar, which global batch the update has consumed.
      num_sequences: int64 scalar, sequences of that global batch.
      consumed_sequences: int64 scalar variable, sequences consumed by all updates of the run.
      is_finite: bool scalar, whether the update was applied.
      gradient_norm: float32 scalar, global norm before clipping.
      learning_rate: float32 scalar, used in this update.
      loss_scale: float32 scalar, used in this update.
      gradients: reduced, unscaled and clipped, in the order of the trainable variables that are
        not frozen; only computed if fetched. What an optimizer then divides them by is not in them.
        Where ranks share the optimizer's state, they are this rank's parts.
      figures: those of single variables. Where ranks share the optimizer's state, all of them must
        fetch them in the same update.
      slots: this rank's parts of the optimizer's slots; none if every rank has the whole ones.
    """

    train_op: tf.Operation
    term_sums: dict[str, Sums]
    data_position: tf.Tensor
    num_sequences: tf.Tensor
    consumed_sequences: tf.Variable
    is_finite: tf.Tensor
    gradient_norm: tf.Tensor
    learning_rate: tf.Tensor
    loss_scale: tf.Tensor
    gradients: list[tf.Tensor]
    figures: VariableFigures
    slots: Sequence[SlotPart] = ()


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

    If the plan has a ramp of batches, the features decide how many micro batches an update has.

    Trains the network's trainable variables and no others in the graph. ``learning_rate`` must be
    the tensor that ``optimizer`` uses. Gradients stay scaled until they are summed over ranks, so
    small ones survive communication in half precision and all ranks agree on overflow.
    """
    task, variables = network.task, optimizer.trained(network.variables.trainable())
    global_step = tf.train.get_or_create_global_step()
    # The data position of an update is global_step plus the number of skipped updates: a skipped
    # update consumed its data, and a resumed run must not see them again. The number of sequences
    # gives the position in the data for a run resumed with a different global batch.
    skipped_updates = create_count(SKIPPED_UPDATES)
    consumed_sequences = create_count(CONSUMED_SEQUENCES)
    data_position = global_step + skipped_updates
    steps = _accumulation_steps(features, plan)
    rank_batch_size = steps * plan.micro_batch_size
    num_sequences = tf.cast(rank_batch_size * plan.world_size, tf.int64)
    denominators = _denominators(task, features, steps * plan.world_size, ranks, settings)

    def micro_batch(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = index * plan.micro_batch_size
        sliced = {name: _slice(value, start, plan) for name, value in features.items()}
        first_example = ranks.rank * rank_batch_size + start
        dropout = Dropout(
            settings.seed,
            data_position=data_position,
            first_example=tf.cast(first_example, tf.int64),
        )
        sums = network.losses(sliced, dropout=dropout)
        loss = tf.add_n([sums[t].loss / denominators(t, sums) for t in task.terms])
        return loss_scale.scale(loss), tf.stack(flatten(sums, task.terms))

    # With a single micro batch, reducing each one or only the sum gives the same result; reduced as
    # a micro batch, gradients are sent one by one as the backward pass produces them, perhaps as
    # rows.
    reduce_each = settings.allreduce_every_micro_batch or plan.accumulation_steps == 1

    shards = optimizer.shards
    if shards is not None:
        optimizer.create_slots(variables)

    def reduce(gradients):
        if shards is not None:
            return shards.sum_gradients(gradients, variables, complete_at_once=not reduce_each)
        return ranks.sum_gradients(
            gradients, variables, complete_at_once=not reduce_each, most_rows=settings.most_rows
        )

    reduce_micro_batch, reduce_sum = (reduce, list) if reduce_each else (as_tables, reduce)
    gradients, metrics = accumulate_gradients(
        micro_batch,
        accumulation_steps=steps,
        num_metrics=num_sums(task.terms),
        variables=variables,
        reduce=reduce_micro_batch,
        add=optimizer.kernels.add,
    )
    gradients = reduce_sum(gradients)
    for gradient, variable in zip(gradients, variables):
        if shards is None or not shards.is_divided(variable):
            gradient.set_shape(variable.shape)
    # Unscaling and clipping are combined in one factor, applied as the optimizer reads gradients.
    factor = loss_scale.inverse()
    scaled_norm = optimizer.global_norm(gradients, variables)
    norm = times(scaled_norm, factor)
    if settings.clip_norm is not None:
        factor = times(factor, clip_factor(norm, settings.clip_norm))
    # Even with finite gradients the second moment may overflow, or the factor be NaN.
    is_finite = tf.is_finite(tf.square(scaled_norm))
    if factor is not None:
        is_finite &= tf.is_finite(factor)

    # These values describe this update, so they must be read before it changes them.
    used_scale = tf.identity(loss_scale.current())

    def apply() -> tf.Tensor:
        applied = optimizer.apply_gradients(
            list(zip(gradients, variables)), global_step, factor=factor, norm=scaled_norm
        )
        with tf.control_dependencies([applied]):
            return tf.identity(optimizer.trust_ratios(variables))

    def skip() -> tf.Tensor:
        with tf.control_dependencies([skipped_updates.assign_add(1).op]):
            return tf.zeros([len(optimizer.ratio_kinds), len(variables)])

    with tf.control_dependencies([data_position, learning_rate, used_scale]):
        ratios = tf.cond(is_finite, apply, skip)
        consume = consumed_sequences.assign_add(num_sequences).op
        train_op = tf.group(ratios.op, loss_scale.update(is_finite), consume)
    norms = optimizer.gradient_norms(gradients, variables)
    kinds = optimizer.ratio_kinds
    return TrainOutputs(
        train_op=train_op,
        term_sums=unflatten(tf.unstack(metrics, num=num_sums(task.terms)), task.terms),
        data_position=data_position,
        num_sequences=num_sequences,
        consumed_sequences=consumed_sequences,
        is_finite=is_finite,
        gradient_norm=norm,
        learning_rate=learning_rate,
        loss_scale=used_scale,
        gradients=[times(gradient, factor) for gradient in gradients],
        figures=VariableFigures(
            variables,
            times(norms, loss_scale.inverse()),
            dict(zip(kinds, tf.unstack(ratios, num=len(kinds)))),
        ),
        slots=() if shards is None else shards.slots,
    )


def _accumulation_steps(features: Features, plan: BatchPlan) -> int | tf.Tensor:
    """Micro batches of an update on this rank, an int32 scalar if they differ between updates."""
    if plan.sizes is None:
        return plan.accumulation_steps
    return tf.shape(next(iter(features.values())))[0] // plan.micro_batch_size


def _denominators(task, features, num_micro_batches, ranks, settings):
    """A function from (term, the micro batch's sums) to the divisor of that term's loss."""
    if settings.loss_normalization == "micro_batch":
        parts = tf.cast(num_micro_batches, tf.float32)
        return lambda term, sums: tf.maximum(sums[term].weight, 1e-5) * parts
    weights = task.weights(features)
    local = tf.stack([weights[term] for term in task.terms])
    total = tf.unstack(ranks.sum_over_ranks(local, name="term_weights"), num=len(task.terms))
    # A global batch without any masked word has a loss of 0, not 0 / 0.
    known = {term: tf.maximum(value, 1e-5) for term, value in zip(task.terms, total)}
    return lambda term, _: known[term]


def _slice(value: tf.Tensor, start: tf.Tensor, plan: BatchPlan) -> tf.Tensor:
    if plan.accumulation_steps == 1:
        return value
    part = value[start : start + plan.micro_batch_size]
    part.set_shape([plan.micro_batch_size, *value.shape[1:]])
    return part
