"""Stand-ins for ranks that have not been started, for plans that only need their number."""

from __future__ import annotations

from bert_tf.ranks.single import SingleProcess


class PlannedRanks(SingleProcess):
    """A stand-in for rank 0 of a job of ``world_size`` ranks; it communicates with no others."""

    def __init__(
        self, world_size: int, *, local_size: int = 1, num_threads: int | None = None
    ) -> None:
        """``local_size`` ranks are on the same host."""
        self.world_size, self.local_size = world_size, local_size
        super().__init__(num_threads)
