"""One training update: everything that happens to the gradients, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import Sums, flatten, num_sums, unflatten
from bert_tf.model.task import Features, Network, Task
from bert_tf.model.variables import create_count
from bert_tf.ranks.ranks import Gradient, Ranks, as_tables
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.gradients import (
    Gradients,
    accumulate_gradients,
    are_finite,
    clipped,
    gradients_of,
    unscaled,
)
from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer

if TYPE_CHECKING:
    from bert_tf.model.compilation import Function
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
    is_compiled = network.options.compiled and not optimizer.communicates
    variables = optimizer.trained(network.variables.trainable())
    counts = _Counts()
    optimizer.create_slots(variables)
    batch = _RankBatch(network, features, plan, ranks, settings, counts.data_position)
    accumulated, sums = _gradients_of_rank(
        batch, variables, plan, optimizer, loss_scale, ranks, settings
    )
    values = optimizer.held_back(accumulated, variables)
    optimizer.set_shapes(values, variables)

    def prepared() -> tuple[Gradients, Gradients]:
        """The gradients of the loss, before and after clipping."""
        summed = Gradients(variables, values, optimizer.global_norm(values, variables))
        gradients = unscaled(summed, loss_scale)
        return gradients, clipped(gradients, settings.clip_norm)

    # If the update is compiled, this only runs for hooks that fetch gradients.
    gradients = prepared()
    norms = times(optimizer.gradient_norms(values, variables), gradients[0].factor)

    def update() -> _Update:
        before, after = prepared() if is_compiled else gradients
        is_finite = are_finite(before)
        apply = _apply_where if is_compiled else _apply_if
        return _Update(is_finite, before.norm, apply(is_finite, optimizer, after, counts))

    # These values describe this update, so read them before it changes them.
    used_scale = tf.identity(loss_scale.current())
    with tf.control_dependencies([counts.data_position, learning_rate, used_scale]):
        updated = _compiled(update)() if is_compiled else update()
        scale_update = loss_scale.update(updated.is_finite)
        consume = counts.consumed_sequences.assign_add(batch.num_sequences).op
    kinds = optimizer.row.ratio_kinds
    return TrainOutputs(
        train_op=tf.group(updated.ratios.op, scale_update, consume),
        term_sums=batch.term_sums(sums),
        data_position=counts.data_position,
        num_sequences=batch.num_sequences,
        is_finite=updated.is_finite,
        gradient_norm=updated.gradient_norm,
        learning_rate=learning_rate,
        loss_scale=used_scale,
        gradients=gradients[1].tensors(),
        figures=VariableFigures(
            variables, norms, dict(zip(kinds, tf.unstack(updated.ratios, num=len(kinds))))
        ),
        slots=() if optimizer.shards is None else optimizer.shards.slots,
    )


class _Update(NamedTuple):
    """The results of the part of an update that follows the sum over ranks.

    Attributes:
      is_finite: bool scalar, whether it was applied.
      gradient_norm: float32 scalar, before clipping.
      ratios: the trust ratios, float32 [ratio kinds, variables]; they exist once all is assigned.
    """

    is_finite: tf.Tensor
    gradient_norm: tf.Tensor
    ratios: tf.Tensor


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
        self.network, self._features, self._plan = network, features, plan
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

    def micro_batch(self, index: tf.Tensor) -> Features:
        """The features of one micro batch."""
        size = self._plan.micro_batch_size
        if self._plan.accumulation_steps == 1:
            return self._features
        return {name: _rows(value, index * size, size) for name, value in self._features.items()}

    def scaled_loss(
        self, network: Network, features: Features, index: tf.Tensor, loss_scale: LossScale
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """A micro batch's part of the scaled loss, a float32 scalar, and its sums in a vector."""
        start = index * self._plan.micro_batch_size
        dropout = Dropout(
            self._seed,
            data_position=self._data_position,
            first_example=tf.cast(self._first_example + start, tf.int64),
        )
        sums = network.losses(features, dropout=dropout)
        terms = network.task.terms
        loss = tf.add_n([sums[term].loss / self._denominators(term, sums) for term in terms])
        return loss_scale.scale(loss), tf.stack(flatten(sums, terms))

    def term_sums(self, sums: tf.Tensor) -> dict[str, Sums]:
        """Splits a vector of sums from :meth:`scaled_loss` by loss term."""
        terms = self.network.task.terms
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


def _rows(value: tf.Tensor, start: tf.Tensor, size: int) -> tf.Tensor:
    rest = value.shape[1:]
    part = tf.slice(value, tf.stack([start, *[0] * len(rest)]), [size, *[-1] * len(rest)])
    part.set_shape([size, *rest])
    return part


def _gradients_of_rank(
    batch: _RankBatch,
    variables: list[tf.Variable],
    plan: BatchPlan,
    optimizer: Optimizer,
    loss_scale: LossScale,
    ranks: Ranks,
    settings: UpdateSettings,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The gradients of the global batch, summed over ranks, and this rank's sums.

    With a single micro batch, summing over ranks after each micro batch or once gives the same
    result; after each one, gradients are sent as the backward pass produces them, maybe as rows.
    """
    is_compiled = batch.network.options.compiled
    names = [variable.op.name for variable in variables]
    reduces_each = settings.allreduce_every_micro_batch or plan.accumulation_steps == 1
    # A ramp has many batch sizes, each of which would have to be compiled.
    compiles_each = is_compiled and (reduces_each or plan.sizes is not None)

    def all_reduce(gradients: list[Gradient]) -> list[tf.Tensor]:
        at_once = is_compiled or not reduces_each
        if optimizer.shards is not None:
            return optimizer.shards.sum_gradients(gradients, variables, complete_at_once=at_once)
        return ranks.sum_gradients(
            gradients, variables, complete_at_once=at_once, most_rows=settings.most_rows
        )

    def gradients(index: tf.Tensor, features: Features) -> tuple[list[Gradient], tf.Tensor]:
        network = batch.network.reading() if is_compiled else batch.network
        loss, sums = batch.scaled_loss(network, features, index, loss_scale)
        found = gradients_of(loss, [network.variables[name] for name in names], names)
        return as_tables(found) if ranks.world_size == 1 else found, sums

    if compiles_each:
        gradients = _compiled(gradients)
    reduce = all_reduce if reduces_each else as_tables

    def micro_batch(index: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        found, sums = gradients(index, batch.micro_batch(index))
        return reduce(found), sums

    def accumulate() -> tuple[list[tf.Tensor], tf.Tensor]:
        return accumulate_gradients(
            micro_batch,
            accumulation_steps=batch.steps,
            num_metrics=num_sums(batch.network.task.terms),
            variables=variables,
            add=optimizer.kernels.add,
        )

    compiles_all = is_compiled and not compiles_each
    accumulated, sums = _compiled(accumulate)() if compiles_all else accumulate()
    return accumulated if reduces_each else all_reduce(accumulated), sums


def _compiled(function: Function) -> Function:
    from bert_tf.model.compilation import compiled

    return compiled(function)


def _apply_if(
    is_finite: tf.Tensor, optimizer: Optimizer, gradients: Gradients, counts: _Counts
) -> tf.Tensor:
    """Applies an update or counts it as skipped; its trust ratios [ratio kinds, variables]."""
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


def _apply_where(
    is_finite: tf.Tensor, optimizer: Optimizer, gradients: Gradients, counts: _Counts
) -> tf.Tensor:
    """Like :func:`_apply_if`, without a branch: XLA would copy the weights for one."""
    applied = optimizer.apply(gradients, where=is_finite)
    counted = tf.cast(is_finite, tf.int64)
    counts.global_step.assign_add(counted, read_value=False)
    counts.skipped_updates.assign_add(1 - counted, read_value=False)
    no_ratios = tf.zeros([len(optimizer.row.ratio_kinds), len(gradients.variables)])
    return (
        no_ratios if applied.ratios is None else tf.where_v2(is_finite, applied.ratios, no_ratios)
    )
