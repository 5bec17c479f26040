"""One training update: everything that happens to the gradients, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.sums import Sums, flatten, num_sums, unflatten
from bert_tf.model.task import Features, Network, Task
from bert_tf.model.variables import create_count
from bert_tf.ranks.ranks import Gradient, Ranks, as_tables
from bert_tf.update.accumulation import accumulate_gradients
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.gradients import Gradients, are_finite, clipped, unscaled
from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer

if TYPE_CHECKING:
    from bert_tf.update.shards import SlotPart

# Both are int64 scalars and saved in checkpoints.
SKIPPED_UPDATES = "training/skipped_updates"
CONSUMED_SEQUENCES = "training/consumed_sequences"


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """How gradients become an update.

    Attributes:
      clip_norm: largest global norm of the gradients; None disables clipping.
      loss_normalization: ``global_batch`` divides each term by its weight in the whole global
        batch, so the update does not depend on how the batch is split; ``micro_batch`` divides by
        the weight in each micro batch and averages, as google-research/bert does with its only
        micro batch.
      allreduce_every_micro_batch: communicate after each micro batch instead of once per update,
        to measure the benefit of delayed communication.
      most_rows: the most table rows that a micro batch looks up; None if its shape determines this.
      seed: dropout seed.
    """

    clip_norm: float | None = 1.0
    loss_normalization: str = "global_batch"
    allreduce_every_micro_batch: bool = False
    most_rows: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class VariableFigures:
    """Metrics of each trained variable in an update; only computed if fetched.

    Attributes:
      variables: the trained, unfrozen variables.
      gradient_norms: float32 [variables], of the reduced and unscaled gradients before clipping.
      trust_ratios: kind -> float32 [variables], NaN for variables that are not adapted; empty for
        optimizers without trust ratios.
    """

    variables: list[tf.Variable]
    gradient_norms: tf.Tensor
    trust_ratios: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class TrainOutputs:
    """Tensors that hooks may fetch. ``term_sums`` differ by rank; all else is equal on every rank.

    Attributes:
      train_op: runs the whole update; global_step shows whether it was applied.
      term_sums: term -> sums over this rank's part of the global batch.
      data_position: int64 scalar, index of the global batch that the update has consumed.
      num_sequences: int64 scalar, sequences in that global batch.
      consumed_sequences: int64 scalar variable, sequences consumed by all updates of the run.
      is_finite: bool scalar, whether the update was applied.
      gradient_norm: float32 scalar, global norm before clipping.
      learning_rate: float32 scalar, used in this update.
      loss_scale: float32 scalar, used in this update.
      gradients: reduced, unscaled and clipped, in the order of the trainable variables that are
        not frozen; only computed if fetched. They precede any normalisation by the optimizer. If
        optimizer state is sharded, they are this rank's parts.
      figures: metrics of single variables. If optimizer state is sharded, all ranks must fetch them
        in the same update.
      slots: this rank's parts of the optimizer's slots; empty if every rank has all slots.
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
    loss_scale: LossScale,
    ranks: Ranks,
    settings: UpdateSettings,
) -> TrainOutputs:
    """Builds one update from the features of one rank, [accumulation steps x micro batch, ...].

    With a batch ramp, the features determine the number of micro batches in an update.

    Trains the network's trainable variables and no others in the graph. ``learning_rate`` must be
    the tensor that ``optimizer`` uses. Gradients stay scaled until the sum over ranks,
    so small ones survive communication in half precision and all ranks agree on overflow.
    """
    variables = optimizer.trained(network.variables.trainable())
    counts = _Counts()
    optimizer.create_slots(variables)
    batch = _RankBatch(network, features, plan, ranks, settings, counts.data_position)
    reduce_micro_batch, reduce_sum = _reductions(variables, plan, optimizer, ranks, settings)

    accumulated, sums = accumulate_gradients(
        lambda index: batch.scaled_loss(index, loss_scale),
        accumulation_steps=batch.steps,
        num_metrics=num_sums(network.task.terms),
        variables=variables,
        reduce=reduce_micro_batch,
        add=optimizer.kernels.add,
    )
    gradients = reduce_sum(accumulated)
    gradients = unscaled(gradients, loss_scale)
    is_finite, norm = are_finite(gradients), gradients.norm
    norms = times(optimizer.gradient_norms(gradients.values, variables), gradients.factor)
    gradients = clipped(gradients, settings.clip_norm)

    # These values describe this update, so read them before it changes them.
    used_scale = tf.identity(loss_scale.current())
    with tf.control_dependencies([counts.data_position, learning_rate, used_scale]):
        ratios = _apply_if(is_finite, optimizer, gradients, counts)
        scale_update = loss_scale.update(is_finite)
        consume = counts.consumed_sequences.assign_add(batch.num_sequences).op
    return TrainOutputs(
        train_op=tf.group(ratios.op, scale_update, consume),
        term_sums=batch.term_sums(sums),
        data_position=counts.data_position,
        num_sequences=batch.num_sequences,
        consumed_sequences=counts.consumed_sequences,
        is_finite=is_finite,
        gradient_norm=norm,
        learning_rate=learning_rate,
        loss_scale=used_scale,
        gradients=gradients.tensors(),
        figures=VariableFigures(variables, norms, optimizer.ratios_by_kind(ratios)),
        slots=optimizer.slot_parts(),
    )


class _Counts:
    """The counters of a run, which are saved in checkpoints.

    An update's data position is global_step plus the number of skipped updates: a skipped update
    consumed its data, which a resumed run must not see again. The number of sequences gives the
    data position of a run that resumes with a different global batch.
    """

    def __init__(self) -> None:
        self.global_step = tf.train.get_or_create_global_step()
        self.skipped_updates = create_count(SKIPPED_UPDATES)
        self.consumed_sequences = create_count(CONSUMED_SEQUENCES)
        self.data_position = self.global_step + self.skipped_updates


class _RankBatch:
    """This rank's part of a global batch.

    Attributes:
      steps: its number of micro batches, an int32 scalar if this differs between updates.
      num_sequences: int64 scalar, sequences in the global batch.
    """

    def __init__(
        self,
        network: Network,
        features: Features,
        plan: BatchPlan,
        ranks: Ranks,
        settings: UpdateSettings,
        data_position: tf.Tensor,
    ):
        self._network, self._features, self._plan = network, features, plan
        self._seed, self._data_position = settings.seed, data_position
        self.steps = plan.accumulation_steps
        if plan.sizes is not None:
            self.steps = tf.shape(next(iter(features.values())))[0] // plan.micro_batch_size
        size = self.steps * plan.micro_batch_size
        self._first_example = ranks.rank * size
        self.num_sequences = tf.cast(size * plan.world_size, tf.int64)
        self._denominators = _denominators(
            network.task, features, self.steps * plan.world_size, ranks, settings
        )

    def scaled_loss(self, index: tf.Tensor, loss_scale: LossScale) -> tuple[tf.Tensor, tf.Tensor]:
        """A micro batch's part of the scaled loss, a float32 scalar, and its sums in a vector."""
        start = index * self._plan.micro_batch_size
        sliced = {n: _slice(value, start, self._plan) for n, value in self._features.items()}
        dropout = Dropout(
            self._seed,
            data_position=self._data_position,
            first_example=tf.cast(self._first_example + start, tf.int64),
        )
        sums = self._network.losses(sliced, dropout=dropout)
        terms = self._network.task.terms
        loss = tf.add_n([sums[term].loss / self._denominators(term, sums) for term in terms])
        return loss_scale.scale(loss), tf.stack(flatten(sums, terms))

    def term_sums(self, sums: tf.Tensor) -> dict[str, Sums]:
        """Splits a vector of sums from :meth:`scaled_loss` by loss term."""
        terms = self._network.task.terms
        return unflatten(tf.unstack(sums, num=num_sums(terms)), terms)


def _denominators(
    task: Task, features: Features, number: tf.Tensor | int, ranks: Ranks, settings: UpdateSettings
) -> Callable[[str, Mapping[str, Sums]], tf.Tensor]:
    """Returns a function from (term, sums) of one of ``number`` micro batches to its divisor."""
    if settings.loss_normalization == "micro_batch":
        parts = tf.cast(number, tf.float32)
        return lambda term, sums: tf.maximum(sums[term].weight, 1e-5) * parts
    weights = task.weights(features)
    local = tf.stack([weights[term] for term in task.terms])
    total = tf.unstack(ranks.sum_over_ranks(local, name="term_weights"), num=len(task.terms))
    # A global batch without masked tokens has a loss of 0, not 0 / 0.
    known = {term: tf.maximum(value, 1e-5) for term, value in zip(task.terms, total)}
    return lambda term, _: known[term]


def _slice(value: tf.Tensor, start: tf.Tensor, plan: BatchPlan) -> tf.Tensor:
    if plan.accumulation_steps == 1:
        return value
    part = value[start : start + plan.micro_batch_size]
    part.set_shape([plan.micro_batch_size, *value.shape[1:]])
    return part


def _reductions(
    variables: list[tf.Variable],
    plan: BatchPlan,
    optimizer: Optimizer,
    ranks: Ranks,
    settings: UpdateSettings,
) -> tuple[Callable[[list[Gradient]], list[tf.Tensor]], Callable[[list[tf.Tensor]], Gradients]]:
    """What is done to each micro batch's gradients, and then to their sum, to sum over ranks.

    With a single micro batch, reducing each micro batch or only the sum gives the same result;
    reduced per micro batch, gradients are sent as the backward pass produces them, maybe as rows.
    """
    each = settings.allreduce_every_micro_batch or plan.accumulation_steps == 1
    shards = optimizer.shards

    def all_reduce(gradients: list[Gradient]) -> list[tf.Tensor]:
        if shards is not None:
            return shards.sum_gradients(gradients, variables, complete_at_once=not each)
        return ranks.sum_gradients(
            gradients, variables, complete_at_once=not each, most_rows=settings.most_rows
        )

    def reduce_sum(micro_batch_sums: list[tf.Tensor]) -> Gradients:
        summed = micro_batch_sums if each else all_reduce(micro_batch_sums)
        values = optimizer.held_back(summed, variables)
        for value, variable in zip(values, variables):
            if shards is None or not shards.is_divided(variable):
                value.set_shape(variable.shape)
        return Gradients(variables, values, optimizer.global_norm(values, variables))

    return all_reduce if each else as_tables, reduce_sum


def _apply_if(
    is_finite: tf.Tensor, optimizer: Optimizer, gradients: Gradients, counts: _Counts
) -> tf.Tensor:
    """Applies and counts an update, or counts it as skipped; returns its trust ratios.

    These are float32 [ratio kinds, variables].
    """
    no_ratios = [len(optimizer.row.ratio_kinds), len(gradients.variables)]

    def apply() -> tf.Tensor:
        applied = optimizer.apply(gradients)
        with tf.control_dependencies([applied.operation]):
            count = counts.global_step.assign_add(1, read_value=False)
        with tf.control_dependencies([count]):
            return tf.zeros(no_ratios) if applied.ratios is None else tf.identity(applied.ratios)

    def skip() -> tf.Tensor:
        with tf.control_dependencies([counts.skipped_updates.assign_add(1).op]):
            return tf.zeros(no_ratios)

    return tf.cond(is_finite, apply, skip)
