"""What a run needs of the watch over its ranks, which only several ranks load."""

from __future__ import annotations

from typing import Protocol

from bert_tf.ranks.ranks import Ranks


class Watch(Protocol):
    """Failure detection of the other ranks, and their agreement on when to stop.

    Attributes:
      can_stop: whether all ranks can stop after the same update.
    """

    can_stop: bool

    def stop_after(self, update: int, received: int | None) -> int | None:
        """Whether to stop after update number ``update`` of this run, the same on every rank.

        Every rank calls it after each update. ``received`` is the number of a stop signal that this
        rank received, or None. Returns the signal to stop for, or None.
        """


class NoWatch:
    """A :class:`Watch` for a single process, or if --rank_timeout=0 disables it."""

    def __init__(self, ranks: Ranks) -> None:
        """A single rank need not agree with others."""
        self.can_stop = ranks.world_size == 1

    def stop_after(self, update: int, received: int | None) -> int | None:
        """The signal that this rank received."""
        del update
        return received
