"""The interface of a run to the watch over its ranks, which only jobs of several ranks load."""

from __future__ import annotations

from typing import Protocol

from bert_tf.ranks.ranks import Ranks


class Watch(Protocol):
    """Detects failures of other ranks, and lets ranks agree on when to stop.

    Attributes:
      can_stop: whether all ranks can stop after the same update.
    """

    can_stop: bool

    def stop_after(self, update: int, received: int | None) -> int | None:
        """Decides whether to stop after update number ``update`` of this run, equal on every rank.

        Every rank calls this after each update. ``received`` is the number of a stop signal that
        this rank received, or None. Returns the signal for which to stop, or None.
        """


class NoWatch:
    """A :class:`Watch` for a single process, or for jobs with --rank_timeout=0."""

    def __init__(self, ranks: Ranks) -> None:
        """A single rank has no others to agree with."""
        self.can_stop = ranks.world_size == 1

    def stop_after(self, update: int, received: int | None) -> int | None:
        """Returns the signal that this rank received."""
        del update
        return received
