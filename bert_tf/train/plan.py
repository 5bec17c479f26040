"""The plan of a run: its batches, steps, learning rate and arithmetic, computed once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_tf.config.settings import OptimizationSettings, StepSettings
from bert_tf.model.variables import VariableSpec
from bert_tf.ranks.ranks import Ranks
from bert_tf.train.arithmetic import Arithmetic
from bert_tf.train.run import Run
from bert_tf.update.batch_plan import BatchPlan, StepPlan, resolve_batch_plan, resolve_step_plan
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.schedules import Schedule, schedule_row
from bert_tf.util.errors import UserError
from bert_tf.util.ramps import Ramp

if TYPE_CHECKING:
    from bert_tf.config.ramps import RampSettings


@dataclasses.dataclass(frozen=True)
class Plan:
    """All decisions about a run's updates.

    Attributes:
      batch: how the sequences of an update are divided, and how batches grow.
      steps: where training ends.
      schedule: the learning rate.
      arithmetic: how updates are computed.
    """

    batch: BatchPlan
    steps: StepPlan
    schedule: Schedule
    arithmetic: Arithmetic

    def at_full_size(self) -> Plan:
        """The same plan without batch and length ramps, to measure its largest updates."""
        return dataclasses.replace(self, batch=self.batch.at_full_size())


def make_plan(
    run: Run,
    optimization: OptimizationSettings,
    batch: BatchPlan,
    arithmetic: Arithmetic,
    *,
    scaled: bool,
    records: int,
) -> Plan:
    """Plans a run that trains on a given number of records.

    A run that resumes with other global batches continues the schedule where the data is. Raises
    UserError as :func:`plan_steps`.

    Args:
      run: the run.
      optimization: what the user requested.
      batch: from :func:`plan_batch`.
      arithmetic: how updates are computed.
      scaled: from :func:`scales_steps`.
      records: number of training records.
    """
    steps = plan_steps(
        optimization, batch, scaled=scaled, records=records, trains=run.settings.do_train
    )
    if optimization.steps.counts_epochs or scaled:
        steps = steps.resumed(
            data_position=run.start.data_position,
            consumed_sequences=run.consumed_sequences(batch),
            batch=batch,
        )
        batch = dataclasses.replace(batch, offset=steps.schedule_offset)
    return Plan(batch, steps, schedule_of(optimization, steps), arithmetic)


def scales_steps(run: Run, optimization: OptimizationSettings) -> bool:
    """Whether a run's steps are divided by the number of its ranks.

    The steps of a resumed run keep their meaning; those of a new run are divided if it uses a
    communication library. Raises UserError if the flag contradicts how the run was started, or if
    that is unknown and the run had a different number of ranks.
    """
    requested, recorded = optimization.steps.scale_steps_by_ranks, None
    if run.record is not None:
        recorded = run.record.fact("steps", "scaled_by_ranks", bool)
        if not recorded and run.record.fact("ranks", "world_size", int) == 1:
            recorded = None  # on one rank there is no difference
    elif requested is None and _had_different_batches(run, optimization):
        raise UserError(
            f"{run.start.checkpoint} was trained with a different global batch, and there is "
            "no run.json to show whether its steps are scaled by ranks; give "
            "--scale_steps_by_ranks=true or --scale_steps_by_ranks=false."
        )
    if run.record is not None and requested is not None and recorded not in (None, requested):
        meaning = "are scaled by ranks" if recorded else "count the updates of all ranks"
        raise UserError(
            f"--scale_steps_by_ranks={str(requested).lower()}, but the steps of the run to resume "
            f"{meaning} ({run.record.path}), so it would end at a different step; leave out "
            "the flag."
        )
    choices = (requested, recorded, run.runtime.library is not None)
    return next(choice for choice in choices if choice is not None)


def _had_different_batches(run: Run, optimization: OptimizationSettings) -> bool:
    if not run.settings.do_train or optimization.steps.num_train_steps is None:
        return False  # there is no end, or it is given in epochs
    batch = plan_batch(optimization, run.ranks.world_size, scaled=False)
    consumed = batch.sequences(0, run.start.data_position)
    return run.start.consumed_sequences not in (None, consumed)


def plan_batch_and_steps(
    optimization: OptimizationSettings,
    world_size: int,
    *,
    scaled: bool,
    records: int,
    trains: bool = True,
    is_bound: bool = False,
) -> tuple[BatchPlan, StepPlan]:
    """Like :func:`plan_batch` and :func:`plan_steps`, for a run that begins."""
    batch = plan_batch(optimization, world_size, scaled=scaled)
    steps = plan_steps(
        optimization, batch, scaled=scaled, records=records, trains=trains, is_bound=is_bound
    )
    return batch, steps


def plan_steps(
    optimization: OptimizationSettings,
    batch: BatchPlan,
    *,
    scaled: bool,
    records: int,
    trains: bool,
    is_bound: bool = False,
) -> StepPlan:
    """The steps of a run, computed from its epochs unless steps are given.

    An epoch is one pass over all training records by all ranks together. Raises UserError if the
    schedule is invalid or, for a run that ``trains``, does not fit into its steps.

    Args:
      optimization: what the user requested.
      batch: from :func:`plan_batch`.
      scaled: whether steps are divided by the number of ranks.
      records: number of training records.
      trains: whether the run trains.
      is_bound: whether ``records`` is only an upper bound.
    """
    total, warmup = _steps_and_warmup(
        optimization.steps, batch, scaled=scaled, records=records, trains=trains, is_bound=is_bound
    )
    steps = resolve_step_plan(
        num_train_steps=total,
        num_warmup_steps=warmup,
        learning_rate=optimization.schedule.learning_rate,
        world_size=batch.world_size,
        scale_steps_by_ranks=scaled,
        learning_rate_scaling=optimization.schedule.learning_rate_scaling,
        stop_after_steps=optimization.steps.stop_after_steps if trains else None,
    )
    if trains:
        optimization.with_steps(total, warmup).check_lengths()
        _check_ramps_end(batch, steps)
    return steps


def _steps_and_warmup(
    asked: StepSettings,
    batch: BatchPlan,
    *,
    scaled: bool,
    records: int,
    trains: bool,
    is_bound: bool,
) -> tuple[int, int]:
    """The steps of one rank, and those of its warm-up, that epochs and proportion come to."""
    steps, warmup = asked.num_train_steps, asked.num_warmup_steps
    if steps is None:
        epochs = asked.num_train_epochs
        if epochs is None:
            raise UserError("give --num_train_steps or --num_train_epochs.")
        # If steps are divided by the number of ranks later, they must be those of one rank.
        if batch.sizes is not None:
            steps = batch.updates_for(records * epochs) * (batch.world_size if scaled else 1)
        else:
            sequences = batch.rank_batch_size if scaled else batch.global_batch_size
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
        if asked.warmup_proportion is None:
            raise UserError("give --num_warmup_steps or --warmup_proportion.")
        warmup = int(steps * asked.warmup_proportion)
    elif not trains:
        warmup = min(warmup, steps)
    return steps, warmup


def plan_batch(optimization: OptimizationSettings, world_size: int, *, scaled: bool) -> BatchPlan:
    """The batches with their ramps; raises UserError for contradictory settings.

    ``scaled``: the steps of ramps are divided by the number of ranks.
    """
    plan = resolve_batch_plan(
        micro_batch_size=optimization.batch.micro_batch_size,
        accumulation_steps=optimization.batch.accumulation_steps,
        global_batch_size=optimization.batch.global_batch_size,
        world_size=world_size,
    )
    divisor = world_size if scaled else 1
    sizes, lengths = optimization.batch.ramp, optimization.length_ramp
    return dataclasses.replace(
        plan,
        sizes=None if sizes is None else _size_ramp(sizes, plan, divisor),
        lengths=None
        if lengths is None
        else lengths.ramp(lengths.full, full_flag="--max_seq_length", divisor=divisor),
    )


def _size_ramp(settings: RampSettings, plan: BatchPlan, divisor: int) -> Ramp:
    ramp = settings.ramp(plan.global_batch_size, full_flag="the global batch", divisor=divisor)
    part = plan.micro_batch_size * plan.world_size
    for size in ramp.values:
        if size % part:
            raise UserError(
                f"--{settings.flag}={settings.text}: a global batch of {size} cannot be divided by "
                f"{plan.micro_batch_size} (micro batch) x {plan.world_size} (ranks) = {part}; "
                "choose multiples, or a smaller --train_batch_size."
            )
    return ramp


def _check_ramps_end(batch: BatchPlan, steps: StepPlan) -> None:
    """Raises UserError if a ramp is not complete before the end of the schedule."""
    # Rounding up for several ranks can move a join to just after the schedule's last update.
    rounded = steps.divisor > 1
    for flag, ramp in (("batch_ramp", batch.sizes), ("length_ramp", batch.lengths)):
        if ramp is not None and ramp.joins and ramp.joins[-1] >= steps.num_train_steps + rounded:
            raise UserError(
                f"--{flag} reaches {ramp.last} at update {ramp.joins[-1]}, but there are only "
                f"{steps.num_train_steps}, so no update would have it; shorten the ramp or train "
                "for longer."
            )


def schedule_of(optimization: OptimizationSettings, steps: StepPlan) -> Schedule:
    """The learning rate schedule, from settings that :func:`plan_steps` has checked."""
    options = optimization.schedule.all_options()
    for name, option in schedule_row(optimization.schedule.name).options.items():
        if option.counts_steps:
            options[name] /= steps.divisor
    at, rewarmup = optimization.schedule.rewarm_at_step, optimization.schedule.num_rewarm_steps
    return Schedule(
        optimization.schedule.name,
        peak_rate=steps.learning_rate,
        total_steps=steps.num_train_steps,
        warmup_steps=steps.num_warmup_steps,
        end_rate=optimization.schedule.end_learning_rate,
        options=options,
        rewarm_at_step=None if at is None else steps.scaled(at),
        rewarm_steps=0 if rewarmup is None else steps.scaled(rewarmup),
    )


def trained_specs(
    specs: Sequence[VariableSpec], optimization: OptimizationSettings
) -> list[VariableSpec]:
    """The variables that updates change; only these have gradients and slots."""
    return [spec for spec in specs if spec.trainable and optimization.rate_factor(spec.name)]


def slot_bytes(
    specs: Sequence[VariableSpec], optimization: OptimizationSettings, ranks: Ranks
) -> int:
    """The size of the optimizer's slots in bytes, on the rank that has the most."""
    row = optimizer_row(optimization.optimizer)
    shapes = {spec.name: spec.shape for spec in trained_specs(specs, optimization)}
    if not optimization.shard_optimizer_state:
        return row.slot_bytes(shapes)
    from bert_tf.update.shards import slot_bytes_of_rank

    owners = row.owners(shapes, ranks.world_size)
    return max(
        slot_bytes_of_rank(row, shapes, owners, rank=rank, world_size=ranks.world_size)
        for rank in range(ranks.world_size)
    )
