"""The batches of a run, as ``train.plan`` resolves them before any graph is built.

Terms: a *micro batch* is the set of sequences in one forward and backward pass on one rank, and
*accumulation steps* is the number of micro batches in one update on one rank, so that

    global batch = micro batch x accumulation steps x ranks.

A *step* is one optimizer update. A *position* counts updates that consumed data, also skipped ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from bert_tf.config.ramps import Ramp


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
      scaled_by_ranks: whether steps are divided by the number of ranks, even if there is only one.
    """

    micro_batch_size: int
    accumulation_steps: int
    world_size: int
    sizes: Ramp | None = None
    lengths: Ramp | None = None
    offset: int = 0
    scaled_by_ranks: bool = False

    @property
    def divisor(self) -> int:
        """How many single-rank steps correspond to one step of all ranks."""
        return self.world_size if self.scaled_by_ranks else 1

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
        return BatchPlan(self.micro_batch_size, self.accumulation_steps, self.world_size)

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

    def arithmetic(self) -> str:
        """The equation of the global batch size, for messages."""
        return (
            f"{self.micro_batch_size} (micro batch) x {self.accumulation_steps} (accumulation "
            f"steps) x {self.world_size} (ranks) = {self.global_batch_size}"
        )
