"""The plan of a run: batches, steps and learning rate, resolved once from what was requested."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from bert_tf.config.ramps import Ramp, RampSettings
from bert_tf.config.schedules import ScheduleSettings, check_lengths
from bert_tf.config.settings import BatchSettings, OptimizationSettings, StepSettings
from bert_tf.model.variables import VariableSpec
from bert_tf.train.run import Run
from bert_tf.train.start_point import NEW, StartPoint
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.schedules import Schedule, schedule_row
from bert_tf.util.errors import UserError

DEFAULT_MICRO_BATCH_SIZE = 32  # as in google-research/bert


@dataclasses.dataclass(frozen=True)
class Plan:
    """All decisions about a run's updates.

    Attributes:
      batch: how the sequences of an update are divided, and how batches grow.
      schedule: the learning rate, the updates that it is for and those of its warm-up. A run that
        resumed with a different global batch is at position global_step + ``batch.offset`` in it.
      requested: what the user requested; the optimizer and its options are used as they are.
      train_steps_on_one_rank, warmup_steps_on_one_rank: the updates before they are scaled by the
        number of ranks.
      stop_after_steps: the position in the schedule at which the run ends; None for its end.
    """

    batch: BatchPlan
    schedule: Schedule
    requested: OptimizationSettings
    train_steps_on_one_rank: int
    warmup_steps_on_one_rank: int
    stop_after_steps: int | None = None

    @property
    def last_position(self) -> int:
        """The position in the schedule after the last update."""
        return self.schedule.total_steps if self.stop_after_steps is None else self.stop_after_steps

    @property
    def last_step(self) -> int:
        """global_step after the last update."""
        return self.last_position - self.batch.offset

    @property
    def length_flag(self) -> str:
        """The flag that prolongs training, for messages."""
        if self.stop_after_steps is not None:
            return "--stop_after_steps"
        return "--num_train_epochs" if self.requested.steps.counts_epochs else "--num_train_steps"

    def trained(self, specs: Sequence[VariableSpec]) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the variables that updates change; only these have gradients."""
        factor = self.requested.rate_factor
        return {spec.name: spec.shape for spec in specs if spec.trainable and factor(spec.name)}

    def slot_bytes(self, specs: Sequence[VariableSpec]) -> int:
        """The size of the optimizer's slots in bytes, on the rank that has the most."""
        row, shapes = optimizer_row(self.requested.optimizer), self.trained(specs)
        if not self.requested.shard_optimizer_state:
            return row.slot_bytes(shapes)
        from bert_tf.update.shards import slot_bytes_of_rank

        world_size = self.batch.world_size
        owners = row.owners(shapes, world_size)
        return max(
            slot_bytes_of_rank(row, shapes, owners, rank=rank, world_size=world_size)
            for rank in range(world_size)
        )


def resolve(
    run: Run, requested: OptimizationSettings, record_count: int, *, is_bound: bool = False
) -> Plan:
    """Plans a run that trains on a given number of records, or on at most that many: ``is_bound``.

    An epoch is one pass over all training records by all ranks together. The requested steps
    describe a run on one rank; N ranks consume N times as much data per step, so if steps are
    scaled, they need 1/N of them (rounded up), warm-up included. Raises UserError if the settings
    contradict each other or the run to resume, and if the parts of a run that trains do not fit
    into its steps.
    """
    scaled = _scales_steps(run, requested)
    batch = _batches(requested, run.ranks.world_size, run.start, scaled=scaled)
    total, warmup, stop = 1, 0, None  # of a run that does not train
    if run.settings.do_train:
        total, warmup = _steps_and_warmup(requested.steps, batch, record_count, is_bound=is_bound)
        stop = requested.steps.stop_after_steps
        _check_fit(requested, batch, total, warmup)
    return Plan(
        batch,
        _schedule(requested.schedule, batch, total, warmup),
        requested,
        train_steps_on_one_rank=total,
        warmup_steps_on_one_rank=warmup,
        stop_after_steps=None if stop is None else math.ceil(stop / batch.divisor),
    )


def _scales_steps(run: Run, requested: OptimizationSettings) -> bool:
    """Whether a run's steps are divided by the number of its ranks.

    The steps of a resumed run keep their meaning; those of a new run are divided if it uses a
    communication library. Raises UserError if the flag contradicts how the run was started, or if
    that is unknown and the run had a different number of ranks.
    """
    given, recorded = requested.steps.scale_steps_by_ranks, None
    if run.start.record is not None:
        recorded = run.start.record.fact("steps", "scaled_by_ranks", bool)
        if not recorded and run.start.record.fact("ranks", "world_size", int) == 1:
            recorded = None  # on one rank there is no difference
    elif given is None and _had_different_batches(run, requested):
        raise UserError(
            f"{run.start.checkpoint} was trained with a different global batch, and there is "
            "no run.json to show whether its steps are scaled by ranks; give "
            "--scale_steps_by_ranks=true or --scale_steps_by_ranks=false."
        )
    if run.start.record is not None and given is not None and recorded not in (None, given):
        meaning = "are scaled by ranks" if recorded else "count the updates of all ranks"
        raise UserError(
            f"--scale_steps_by_ranks={str(given).lower()}, but the steps of the run to resume "
            f"{meaning} ({run.start.record.path}), so it would end at a different step; leave out "
            "the flag."
        )
    choices = (given, recorded, run.runtime.library is not None)
    return next(choice for choice in choices if choice is not None)


def _had_different_batches(run: Run, requested: OptimizationSettings) -> bool:
    if not run.settings.do_train or requested.steps.counts_epochs:
        return False  # there is no end, or it is given in epochs
    batch = _batches(requested, run.ranks.world_size, NEW, scaled=False)
    consumed = batch.sequences(0, run.start.data_position)
    return run.start.consumed_sequences not in (None, consumed)


def _steps_and_warmup(
    asked: StepSettings, batch: BatchPlan, record_count: int, *, is_bound: bool
) -> tuple[int, int]:
    """The steps of one rank, and those of its warm-up, that epochs and proportion come to."""
    steps, warmup = asked.num_train_steps, asked.num_warmup_steps
    if steps is None:
        epochs = asked.num_train_epochs
        if epochs is None:
            raise UserError("give --num_train_steps or --num_train_epochs.")
        # If steps are divided by the number of ranks later, they must be those of one rank.
        if batch.sizes is not None:
            steps = batch.sizes.length_of(record_count * epochs) * batch.divisor
        else:
            steps = math.ceil(record_count * epochs / (batch.global_batch_size // batch.divisor))
        steps = max(1, steps)
        if warmup is not None and warmup > steps:
            at_most = "at most " * is_bound
            raise UserError(
                f"--num_warmup_steps={warmup} is more than the {at_most}{steps} steps of "
                f"--num_train_epochs={epochs:g}, so the learning rate would never reach its "
                "peak; lower it, or give --warmup_proportion instead."
            )
    if warmup is None:
        warmup = int(steps * (asked.warmup_proportion or 0.0))
    return steps, warmup


def _check_fit(requested: OptimizationSettings, batch: BatchPlan, total: int, warmup: int) -> None:
    """Raises UserError if a part of the run does not fit into ``total`` steps of one rank."""
    stop = requested.steps.stop_after_steps
    if stop is not None and stop > total:
        raise UserError(
            f"--stop_after_steps={stop} must be from 1 to --num_train_steps={total}, the end of "
            "the schedule; change one of them."
        )
    check_lengths(requested.schedule, total, warmup)
    updates = math.ceil(total / batch.divisor)
    # Rounding up for several ranks can move a join to just after the schedule's last update.
    last = updates + (batch.divisor > 1)
    for flag, ramp in (("batch_ramp", batch.sizes), ("length_ramp", batch.lengths)):
        if ramp is not None and ramp.joins and ramp.joins[-1] >= last:
            raise UserError(
                f"--{flag} reaches {ramp.last} at update {ramp.joins[-1]}, but there are only "
                f"{updates}, so no update would have it; shorten the ramp or train for longer."
            )


def _batches(
    requested: OptimizationSettings, world_size: int, start: StartPoint, *, scaled: bool
) -> BatchPlan:
    """The batches of a run with their ramps; raises UserError for contradictory settings.

    A run that resumes with other global batches continues its schedule where the data is: once half
    of the sequences have been consumed, half of the steps are done, whatever the number of ranks.
    With a batch ramp, the steps done are the number of updates that it takes to consume them.
    ``scaled`` comes from :func:`_scales_steps`.
    """
    micro, accumulation = _divided(requested.batch, world_size)
    full, divisor = micro * accumulation * world_size, world_size if scaled else 1
    sizes = lengths = None
    if requested.batch.ramp is not None:
        sizes = requested.batch.ramp.ramp(full, full_flag="the global batch", divisor=divisor)
        _check_sizes(requested.batch.ramp, sizes, micro, world_size)
    if requested.length_ramp is not None:
        ramp = requested.length_ramp
        lengths = ramp.ramp(ramp.full, full_flag="--max_seq_length", divisor=divisor)
    offset = 0
    if scaled or requested.steps.counts_epochs:
        position = (sizes or Ramp((full,))).nearest_position(start.consumed(full))
        offset = position - start.data_position
    return BatchPlan(micro, accumulation, world_size, sizes, lengths, offset, scaled)


def _check_sizes(requested: RampSettings, sizes: Ramp, micro: int, world_size: int) -> None:
    """Raises UserError for a global batch that the ranks cannot divide into micro batches."""
    part = micro * world_size
    for size in sizes.values:
        if size % part:
            raise UserError(
                f"--{requested.flag}={requested.text}: a global batch of {size} cannot be divided "
                f"by {micro} (micro batch) x {world_size} (ranks) = {part}; choose multiples, or a "
                "smaller --train_batch_size."
            )


def _divided(requested: BatchSettings, world_size: int) -> tuple[int, int]:
    """The micro batch and the accumulation steps, from two of them and the global batch.

    Given only the global batch, uses one accumulation step. Without a global batch, the micro batch
    defaults to 32 and accumulation steps to one. Raises UserError with the arithmetic if the values
    contradict each other or do not divide evenly.
    """
    micro, accumulation = requested.micro_batch_size, requested.accumulation_steps
    total = requested.global_batch_size
    if total is None:
        return micro or DEFAULT_MICRO_BATCH_SIZE, accumulation or 1
    if micro is None:
        accumulation = accumulation or 1
        return _quotient(total, accumulation, world_size, "accumulation steps"), accumulation
    if accumulation is None:
        return micro, _quotient(total, micro, world_size, "micro batch")
    plan = BatchPlan(micro, accumulation, world_size)
    if plan.global_batch_size != total:
        raise UserError(
            f"--global_batch_size={total} contradicts {plan.arithmetic()}; leave out "
            "one of --train_batch_size, --num_accumulation_steps and --global_batch_size."
        )
    return micro, accumulation


def _quotient(total: int, divisor: int, world_size: int, divisor_name: str) -> int:
    quotient, remainder = divmod(total, divisor * world_size)
    if remainder or not quotient:
        raise UserError(
            f"--global_batch_size={total} cannot be divided by {divisor} "
            f"({divisor_name}) x {world_size} (ranks) = {divisor * world_size}; choose a multiple."
        )
    return quotient


def _schedule(asked: ScheduleSettings, batch: BatchPlan, total: int, warmup: int) -> Schedule:
    """The schedule of a run with so many updates of one rank, rounded up for several."""
    options, ranks, divisor = asked.all_options(), batch.world_size, batch.divisor
    for name, option in schedule_row(asked.name).options.items():
        if option.counts_steps:
            options[name] /= divisor
    factor = {"none": 1.0, "linear": float(ranks), "sqrt": math.sqrt(ranks)}
    at, rewarmup = asked.rewarm_at_step, asked.num_rewarm_steps
    return Schedule(
        asked.name,
        peak_rate=asked.learning_rate * factor[asked.learning_rate_scaling],
        total_steps=math.ceil(total / divisor),
        warmup_steps=math.ceil(warmup / divisor),
        end_rate=asked.end_learning_rate,
        options=options,
        rewarm_at_step=None if at is None else math.ceil(at / divisor),
        rewarm_steps=0 if rewarmup is None else math.ceil(rewarmup / divisor),
    )
