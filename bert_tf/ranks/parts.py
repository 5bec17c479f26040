"""How the elements of a tensor are divided among ranks."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One rank's elements of a flattened tensor, which follow each other.

    Attributes:
      start: the number of the first one.
      size: how many there are; may be 0.
    """

    start: int
    size: int

    @property
    def end(self) -> int:
        """The number after that of the last one."""
        return self.start + self.size


def part_of(size: int, rank: int, world_size: int) -> Part:
    """A rank's part of ``size`` elements, as Horovod's reduce-scatter cuts them.

    Parts follow each other in the order of ranks; the first ``size % world_size`` have one element
    more than the others.
    """
    least, more = divmod(size, world_size)
    return Part(rank * least + min(rank, more), least + (rank < more))
