"""The arithmetic of batches, steps and learning rates, resolved before any graph is built.

Terms: a *micro batch* is the set of sequences in one forward and backward pass on one rank, and
*accumulation steps* is the number of micro batches in one update on one rank, so that

    global batch = micro batch x accumulation steps x ranks.

A *step* is one optimizer update. A *position* counts updates that consumed data, also skipped ones.
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
    """Consecutive updates with the same batch size and sequence length.

    Attributes:
      updates: number of updates.
      global_batch_size: sequences in each update.
      length: sequence length; None without a length ramp.
    """

    updates: int
    global_batch_size: int
    length: int | None

    @property
    def sequences(self) -> int:
        """Number of sequences in all updates."""
        return self.updates * self.global_batch_size


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """How the sequences of one update are divided into micro batches and among ranks.

    Attributes:
      micro_batch_size: sequences in a micro batch.
      accumulation_steps: micro batches per update on one rank, after any ramp has ended.
      world_size: number of ranks.
      sizes: the global batch size at each position of the ramps; None if it is constant.
      lengths: the sequence length at each position of the ramps; None if it is constant.
      offset: added to a data position to get the position in the ramps; nonzero in a run that
        resumed after updates with different global batch sizes.
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
        """Number of sequences in the update at a position."""
        return self.size_ramp().at(position)

    def length_at(self, position: int) -> int | None:
        """The sequence length of the update at a position; None without a length ramp."""
        ramp = self.length_ramp()
        return None if ramp is None else ramp.at(position)

    def sequences(self, begin: int, end: int) -> int:
        """Number of sequences in the updates at positions ``begin`` to ``end`` - 1."""
        return self.size_ramp().total(begin, end)

    def size_ramp(self) -> Ramp:
        """The global batch size at each data position."""
        sizes = self.sizes or Ramp((self.global_batch_size,))
        return sizes.shifted(self.offset)

    def length_ramp(self) -> Ramp | None:
        """The sequence length at each data position; None without a length ramp."""
        return None if self.lengths is None else self.lengths.shifted(self.offset)

    def segments(self, begin: int, end: int) -> Iterator[Segment]:
        """Splits the updates at positions ``begin`` to ``end`` - 1 where their batches change."""
        joins = {j - self.offset for r in (self.sizes, self.lengths) if r for j in r.joins}
        borders = [begin, *sorted(join for join in joins if begin < join < end), end]
        for first, stop in zip(borders, borders[1:]):
            if first < stop:
                yield Segment(stop - first, self.global_batch_at(first), self.length_at(first))

    def work(self, begin: int, end: int) -> int:
        """Sums sequences times sequence length over the positions ``begin`` to ``end`` - 1.

        With a length ramp, the run time of updates is roughly proportional to this.
        """
        return sum(part.sequences * (part.length or 1) for part in self.segments(begin, end))

    def nearest_position(self, sequences: int) -> int:
        """The ramp position at which about ``sequences`` sequences have been consumed."""
        ramp = dataclasses.replace(self, offset=0).size_ramp()
        position = ramp.position_of(sequences)
        return round(position + (sequences - ramp.total(0, position)) / ramp.at(position))

    def updates_for(self, sequences: float) -> int:
        """The smallest number of updates from position 0 that consumes ``sequences`` or more."""
        whole = math.ceil(sequences)
        position = self.size_ramp().position_of(whole)
        return position + (self.sequences(0, position) < whole)

    def arithmetic(self) -> str:
        """The equation of the global batch size, for messages."""
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

    Given only the global batch, uses one accumulation step. Without a global batch, the micro
    batch defaults to 32 (as in google-research/bert) and accumulation steps to one. Raises
    UserError with the arithmetic if the values contradict each other or do not divide evenly.
    """
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
      schedule_offset: added to global_step to get the position in the schedule; nonzero in a run
        that resumed with a different global batch size.
      divisor: how many single-rank steps correspond to one step of all ranks.
      stop_after_steps: the schedule step, after scaling, at which the run ends; None for the end
        of the schedule.
      scaled_by_ranks: whether steps are divided by the number of ranks, even if there is only one.
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
        """Converts a number of single-rank steps to steps of all ranks, rounded up."""
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

        The position in the schedule follows from the data: once half of the sequences have been
        consumed, half of the steps are done, whatever the number of ranks. With a batch ramp, the
        steps done are the number of updates that it takes to consume those sequences.
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
    so they need 1/N of the steps (rounded up), warm-up included. Raises UserError if the run would
    end after its schedule.
    """
    if stop_after_steps is not None and stop_after_steps > num_train_steps:
        raise UserError(
            f"--stop_after_steps={stop_after_steps} must be from 1 to --num_train_steps="
            f"{num_train_steps}, the end of the schedule; change one of them."
        )
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
