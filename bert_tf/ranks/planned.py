"""Ranks that have not been started, for plans that need their number only."""

from __future__ import annotations

from bert_tf.ranks.single import SingleProcess


class PlannedRanks(SingleProcess):
    """Rank 0 of so many; it communicates with none of the others."""

    def __init__(
        self, world_size: int, *, local_size: int = 1, num_threads: int | None = None
    ) -> None:
        """``local_size`` ranks share a host."""
        self.world_size, self.local_size = world_size, local_size
        super().__init__(num_threads)
