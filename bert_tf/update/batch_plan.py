"""The arithmetic of batches, steps and learning rates, resolved before any graph is built.

Terms: a *micro batch* is the sequences of one forward and backward pass on one rank, *accumulation
steps* are the number of micro batches in one update on one rank, and

    global batch = micro batch x accumulation steps x ranks.

A *step* is one optimizer update. A *position* counts updates that consumed data, skipped ones too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from bert_tf.util.errors import UserError
from bert_tf.util.ramps import Ramp

DEFAULT_MICRO_BATCH_SIZE = 32


class Segment(NamedTuple):
    """Consecutive updates with batches of the same size and length.

    Attributes:
      updates: number of updates.
      global_batch_size: sequences of each.
      length: positions of each sequence; None without a ramp of lengths.
    """

    updates: int
    global_batch_size: int
    length: int | None

    @property
    def sequences(self) -> int:
        """Sequences of all updates."""
        return self.updates * self.global_batch_size


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """How the sequences of one update are divided among micro batches and ranks.

    Attributes:
      micro_batch_size: sequences of a micro batch.
      accumulation_steps: micro batches of an update on one rank, at the end of any ramp.
      world_size: number of ranks.
      sizes: the global batch at each position of the ramps; None if it is always the full one.
      lengths: the positions of a sequence there; None if they are not ramped.
      offset: added to a position in the data to get that in the ramps; not 0 in a run that was
        resumed after different global batches.
    """

    micro_batch_size: int
    accumulation_steps: int
    world_size: int
    sizes: Ramp | None = None
    lengths: Ramp | None = None
    offset: int = 0

    @property
    def rank_batch_size(self) -> int:
        """Sequences that one rank contributes to an update."""
        return self.micro_batch_size * self.accumulation_steps

    @property
    def global_batch_size(self) -> int:
        """Sequences of one update over all ranks."""
        return self.rank_batch_size * self.world_size

    def at_full_size(self) -> BatchPlan:
        """The plan without its ramps."""
        return dataclasses.replace(self, sizes=None, lengths=None, offset=0)

    def global_batch_at(self, position: int) -> int:
        """Sequences of the update at a position."""
        return self.size_ramp().at(position)

    def length_at(self, position: int) -> int | None:
        """Positions of a sequence in the update at a position; None without a ramp of lengths."""
        ramp = self.length_ramp()
        return None if ramp is None else ramp.at(position)

    def sequences(self, begin: int, end: int) -> int:
        """Sequences of the updates at positions ``begin`` to ``end`` - 1."""
        return self.size_ramp().total(begin, end)

    def size_ramp(self) -> Ramp:
        """The global batch at each position in the data."""
        sizes = self.sizes or Ramp((self.global_batch_size,))
        return sizes.shifted(self.offset)

    def length_ramp(self) -> Ramp | None:
        """The positions of a sequence at each position in the data; None without a ramp."""
        return None if self.lengths is None else self.lengths.shifted(self.offset)

    def segments(self, begin: int, end: int) -> Iterator[Segment]:
        """The updates at positions ``begin`` to ``end`` - 1, divided where a batch changes."""
        joins = {j - self.offset for r in (self.sizes, self.lengths) if r for j in r.joins}
        borders = [begin, *sorted(join for join in joins if begin < join < end), end]
        for first, stop in zip(borders, borders[1:]):
            if first < stop:
                yield Segment(stop - first, self.global_batch_at(first), self.length_at(first))

    def work(self, begin: int, end: int) -> int:
        """Sequences of the updates at positions ``begin`` to ``end`` - 1, times their lengths.

        With a ramp of lengths, it is the time of updates that this is about proportional to.
        """
        return sum(part.sequences * (part.length or 1) for part in self.segments(begin, end))

    def nearest_position(self, sequences: int) -> int:
        """The position in the ramps before which about as many sequences are consumed."""
        ramp = dataclasses.replace(self, offset=0).size_ramp()
        position = ramp.position_of(sequences)
        return round(position + (sequences - ramp.total(0, position)) / ramp.at(position))

    def updates_for(self, sequences: float) -> int:
        """The fewest updates from position 0 on that consume at least so many sequences."""
        whole = math.ceil(sequences)
        position = self.size_ramp().position_of(whole)
        return position + (self.sequences(0, position) < whole)

    def arithmetic(self) -> str:
        """The product, written out."""
        return (
            f"{self.micro_batch_size} (micro batch) x {self.accumulation_steps} (accumulation "
            f"steps) x {self.world_size} (ranks) = {self.global_batch_size}"
        )


def resolve_batch_plan(
    *,
    micro_batch_size: int | None,
    accumulation_steps: int | None,
    global_batch_size: int | None,
    world_size: int,
) -> BatchPlan:
    """Derives the batch plan from any two of micro batch, accumulation steps and global batch.

    If only the global batch is given, there is one accumulation step. Without a global batch, the
    micro batch defaults to 32 (as in google-research/bert) and accumulation steps to one. Raises
    UserError with the arithmetic if the values contradict each other or leave a remainder.
    """
    given = {
        "train_batch_size": micro_batch_size,
        "num_accumulation_steps": accumulation_steps,
        "global_batch_size": global_batch_size,
    }
    for flag, value in given.items():
        if value is not None and value < 1:
            raise UserError(f"--{flag}={value} must be at least 1.")
    if global_batch_size is None:
        return BatchPlan(
            micro_batch_size or DEFAULT_MICRO_BATCH_SIZE, accumulation_steps or 1, world_size
        )
    if micro_batch_size is None:
        accumulation_steps = accumulation_steps or 1
        micro_batch_size = _divide(
            global_batch_size, accumulation_steps, world_size, "accumulation steps"
        )
    elif accumulation_steps is None:
        accumulation_steps = _divide(global_batch_size, micro_batch_size, world_size, "micro batch")
    plan = BatchPlan(micro_batch_size, accumulation_steps, world_size)
    if plan.global_batch_size != global_batch_size:
        raise UserError(
            f"--global_batch_size={global_batch_size} contradicts {plan.arithmetic()}; leave out "
            "one of --train_batch_size, --num_accumulation_steps and --global_batch_size."
        )
    return plan


def _divide(global_batch_size: int, divisor: int, world_size: int, divisor_name: str) -> int:
    quotient, remainder = divmod(global_batch_size, divisor * world_size)
    if remainder or not quotient:
        raise UserError(
            f"--global_batch_size={global_batch_size} cannot be divided by {divisor} "
            f"({divisor_name}) x {world_size} (ranks) = {divisor * world_size}; choose a multiple."
        )
    return quotient


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """Updates and learning rate before and after scaling by the number of ranks.

    Attributes:
      requested_train_steps, requested_warmup_steps: before scaling, for one rank.
      num_train_steps, num_warmup_steps: after scaling, for all ranks.
      requested_learning_rate, learning_rate: the peak, before and after scaling.
      schedule_offset: added to global_step to get the position in the schedule; not 0 in a run
        that was resumed with a different global batch size.
      divisor: steps of one rank in a step of all ranks.
      stop_after_steps: the step, after scaling, of the schedule at which the run ends; None for its
        end.
      scaled_by_ranks: whether steps are divided by the number of ranks, even if that is one.
    """

    requested_train_steps: int
    requested_warmup_steps: int
    num_train_steps: int
    num_warmup_steps: int
    requested_learning_rate: float
    learning_rate: float
    schedule_offset: int = 0
    divisor: int = 1
    stop_after_steps: int | None = None
    scaled_by_ranks: bool = False

    def scaled(self, steps: int) -> int:
        """Steps of all ranks, rounded up, for a number of steps of one rank."""
        return math.ceil(steps / self.divisor)

    @property
    def last_position(self) -> int:
        """The position in the schedule after the last update."""
        return self.num_train_steps if self.stop_after_steps is None else self.stop_after_steps

    @property
    def last_step(self) -> int:
        """global_step after the last update."""
        return self.last_position - self.schedule_offset

    def resumed(self, *, data_position: int, consumed_sequences: int, batch: BatchPlan) -> StepPlan:
        """The plan of a run whose first ``data_position`` updates had different global batches.

        Its position in the schedule follows from the data: with half of all sequences consumed,
        half of the steps are done, however many ranks there were. With a ramp of batches, as many
        steps are done as it takes to consume them.
        """
        position = batch.nearest_position(consumed_sequences)
        return dataclasses.replace(self, schedule_offset=position - data_position)


def resolve_step_plan(
    *,
    num_train_steps: int,
    num_warmup_steps: int,
    learning_rate: float,
    world_size: int,
    scale_steps_by_ranks: bool,
    learning_rate_scaling: str,
    stop_after_steps: int | None = None,
) -> StepPlan:
    """Scales steps and learning rate by the number of ranks.

    The requested steps describe a run on one rank; N ranks consume N times as much data per step,
    so they need 1/N of the steps (rounded up), warm-up included. Raises UserError for steps or
    rates that do not form a valid schedule.
    """
    if num_train_steps < 1:
        raise UserError(f"--num_train_steps={num_train_steps} must be at least 1.")
    if num_warmup_steps < 0:
        raise UserError(f"--num_warmup_steps={num_warmup_steps} must not be negative.")
    if stop_after_steps is not None and not 1 <= stop_after_steps <= num_train_steps:
        raise UserError(
            f"--stop_after_steps={stop_after_steps} must be from 1 to --num_train_steps="
            f"{num_train_steps}, the end of the schedule; change one of them."
        )
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise UserError(f"--learning_rate={learning_rate} must be a positive number.")
    divisor = world_size if scale_steps_by_ranks else 1
    factor = {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}
    return StepPlan(
        divisor=divisor,
        scaled_by_ranks=scale_steps_by_ranks,
        requested_train_steps=num_train_steps,
        requested_warmup_steps=num_warmup_steps,
        num_train_steps=math.ceil(num_train_steps / divisor),
        num_warmup_steps=math.ceil(num_warmup_steps / divisor),
        requested_learning_rate=learning_rate,
        learning_rate=learning_rate * factor[learning_rate_scaling],
        stop_after_steps=None
        if stop_after_steps is None
        else math.ceil(stop_after_steps / divisor),
    )
