"""How the elements of a tensor are divided among ranks."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One rank's contiguous elements of a flattened tensor.

    Attributes:
      start: index of the first element.
      size: number of elements; may be 0.
    """

    start: int
    size: int

    @property
    def end(self) -> int:
        """The index after the last element."""
        return self.start + self.size


def part_of(size: int, rank: int, world_size: int) -> Part:
    """A rank's part of ``size`` elements, divided like Horovod's reduce-scatter.

    Parts are contiguous and in order of rank; the first ``size % world_size`` parts have one
    element more than the others.
    """
    least, more = divmod(size, world_size)
    return Part(rank * least + min(rank, more), least + (rank < more))
