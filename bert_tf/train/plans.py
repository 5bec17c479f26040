"""The plans of a run, from its settings: batches, steps, learning rate, trained variables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from bert_tf.config.ramps import RampSettings
from bert_tf.config.schedules import check_lengths, check_schedule, options_of
from bert_tf.config.settings import OptimizationSettings
from bert_tf.model.variables import VariableSpec
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.update.batch_plan import BatchPlan, StepPlan, resolve_batch_plan, resolve_step_plan
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.schedules import Schedule, schedule_row
from bert_tf.update.shards import slot_bytes_of_rank
from bert_tf.util.errors import UserError
from bert_tf.util.ramps import Ramp


def resolve_plans(
    optimization: OptimizationSettings, ranks: SingleProcess, *, trains: bool = True
) -> tuple[BatchPlan, StepPlan]:
    """The batch and step plans; raises UserError for contradictory settings.

    The parts of the schedule need not fit into the steps of a run that does not train.
    """
    batch = batch_plan(optimization, ranks)
    check_schedule(optimization)
    steps = resolve_step_plan(
        num_train_steps=optimization.num_train_steps,
        num_warmup_steps=optimization.num_warmup_steps,
        learning_rate=optimization.learning_rate,
        world_size=ranks.world_size,
        scale_steps_by_ranks=optimization.scale_steps_by_ranks,
        learning_rate_scaling=optimization.learning_rate_scaling,
        stop_after_steps=optimization.stop_after_steps if trains else None,
    )
    if trains:
        check_lengths(optimization)
        _check_ramps_end(batch, steps)
    return batch, steps


def schedule_of(optimization: OptimizationSettings, steps: StepPlan) -> Schedule:
    """The learning rate's schedule, from settings that ``resolve_plans`` has checked."""
    options = options_of(optimization)
    for name, option in schedule_row(optimization.schedule).options.items():
        if option.counts_steps:
            options[name] /= steps.divisor
    begins_again = optimization.rewarm_at_step is not None
    return Schedule(
        optimization.schedule,
        peak_rate=steps.learning_rate,
        total_steps=steps.num_train_steps,
        warmup_steps=steps.num_warmup_steps,
        end_rate=optimization.end_learning_rate,
        options=options,
        rewarm_at_step=steps.scaled(optimization.rewarm_at_step) if begins_again else None,
        rewarm_steps=steps.scaled(optimization.num_rewarm_steps) if begins_again else 0,
    )


def batch_plan(optimization: OptimizationSettings, ranks: SingleProcess) -> BatchPlan:
    """The batch plan with its ramps; raises UserError for contradictory settings."""
    plan = resolve_batch_plan(
        micro_batch_size=optimization.micro_batch_size,
        micro_batch_flag=optimization.micro_batch_flag,
        accumulation_steps=optimization.accumulation_steps,
        global_batch_size=optimization.global_batch_size,
        world_size=ranks.world_size,
    )
    divisor = ranks.world_size if optimization.scale_steps_by_ranks else 1
    sizes, lengths = optimization.batch_ramp, optimization.length_ramp
    return dataclasses.replace(
        plan,
        sizes=None if sizes is None else _size_ramp(sizes, plan, optimization, divisor),
        lengths=None
        if lengths is None
        else lengths.ramp(lengths.full, full_flag="--max_seq_length", divisor=divisor),
    )


def _size_ramp(
    settings: RampSettings, plan: BatchPlan, optimization: OptimizationSettings, divisor: int
) -> Ramp:
    ramp = settings.ramp(plan.global_batch_size, full_flag="the global batch", divisor=divisor)
    part = plan.micro_batch_size * plan.world_size
    for size in ramp.values:
        if size % part:
            raise UserError(
                f"--{settings.flag}={settings.text}: a global batch of {size} cannot be divided by "
                f"{plan.micro_batch_size} (micro batch) x {plan.world_size} (ranks) = {part}; "
                f"choose multiples, or a smaller --{optimization.micro_batch_flag}."
            )
    return ramp


def _check_ramps_end(batch: BatchPlan, steps: StepPlan) -> None:
    """Raises UserError for a ramp that is not complete before the schedule's end."""
    # Of all ranks' updates, rounded up, the last may be the one after the last of the schedule.
    rounded = steps.divisor > 1
    for flag, ramp in (("batch_ramp", batch.sizes), ("length_ramp", batch.lengths)):
        if ramp is not None and ramp.joins and ramp.joins[-1] >= steps.num_train_steps + rounded:
            raise UserError(
                f"--{flag} reaches {ramp.last} at update {ramp.joins[-1]}, but there are only "
                f"{steps.num_train_steps}, so no update would have it; shorten the ramp or train "
                "for longer."
            )


def trained_specs(
    specs: Sequence[VariableSpec], optimization: OptimizationSettings
) -> list[VariableSpec]:
    """The variables that an update changes; only they have gradients and slots."""
    return [spec for spec in specs if spec.trainable and optimization.rate_factor(spec.name)]


def slot_bytes(
    specs: Sequence[VariableSpec], optimization: OptimizationSettings, ranks: SingleProcess
) -> int:
    """Bytes of the optimizer's slots on the rank that has the most."""
    row = optimizer_row(optimization.optimizer)
    shapes = {spec.name: spec.shape for spec in trained_specs(specs, optimization)}
    if not optimization.shard_optimizer_state:
        return row.slot_bytes(shapes)
    owners = row.owners(shapes, ranks.world_size)
    return max(
        slot_bytes_of_rank(row, shapes, owners, rank=rank, world_size=ranks.world_size)
        for rank in range(ranks.world_size)
    )


def with_steps(
    optimization: OptimizationSettings,
    ranks: SingleProcess,
    *,
    records: int,
    epochs: float | None,
    warmup_proportion: float | None,
    trains: bool,
    is_bound: bool = False,
) -> OptimizationSettings:
    """The settings with the number of steps computed from epochs, unless steps are given.

    An epoch is one pass over all training records by all ranks together. Raises UserError if the
    warm-up is longer than the epochs.

    Args:
      optimization: the result of ``checks.settle_scaling``.
      ranks: all ranks.
      records: number of training records.
      epochs, warmup_proportion: length of training and warm-up; None if given in steps.
      trains: whether the run trains, so that the warm-up must fit.
      is_bound: whether ``records`` is only an upper bound.
    """
    steps, warmup = optimization.num_train_steps, optimization.num_warmup_steps
    if steps is None:
        batch = batch_plan(optimization, ranks)
        # If steps are later divided by the number of ranks, they are those of one rank.
        divided_later = optimization.scale_steps_by_ranks
        if batch.sizes is not None:
            steps = batch.updates_for(records * epochs) * (batch.world_size if divided_later else 1)
        else:
            sequences = batch.rank_batch_size if divided_later else batch.global_batch_size
            steps = math.ceil(records * epochs / sequences)
        steps = max(1, steps)
        if trains and warmup is not None and warmup > steps:
            at_most = "at most " * is_bound
            raise UserError(
                f"--num_warmup_steps={warmup} is more than the {at_most}{steps} steps of "
                f"--num_train_epochs={epochs:g}, so the learning rate would never reach its "
                "peak; lower it, or give --warmup_proportion instead."
            )
    if warmup is None:
        warmup = int(steps * warmup_proportion)
    elif not trains:
        warmup = min(warmup, steps)
    return dataclasses.replace(optimization, num_train_steps=steps, num_warmup_steps=warmup)
