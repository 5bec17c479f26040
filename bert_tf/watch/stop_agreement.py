"""How all ranks stop after the same update when some of them are asked to."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Callable

from bert_tf.watch.rank_links import Message

ASK, STOP, NOTED = "ask to stop", "stop", "stop noted"


class StopAgreement:
    """One rank's view of when to stop.

    Rank 0 decides on the update after the one it has just done, and does not begin that one before
    every rank knows. No rank can finish it before rank 0 has begun it, so all stop after it.
    """

    def __init__(self, others: Iterable[int], *, decides: bool, tell: Callable[[Message], None]):
        """``others`` are the ranks that ``tell`` sends to; ``decides`` is true on rank 0."""
        self._decides = decides
        self._tell = tell
        self._condition = threading.Condition()
        self._uninformed = set(others)
        self._asked: int | None = None
        self._stop: tuple[int, int] | None = None  # after which update, for which signal

    def stop_after(self, update: int, received: int | None) -> int | None:
        """As ``NoWatch.stop_after``; on rank 0 it may wait for the other ranks."""
        with self._condition:
            if self._stop is not None:
                last, number = self._stop
                return number if update >= last else None
            asked = received or self._asked
            if asked and self._decides:
                self._stop = (update + 1, asked)
                self._tell({"kind": STOP, "after": update + 1, "signal": asked})
                self._condition.wait_for(lambda: not self._uninformed)
            elif asked:
                self._tell({"kind": ASK, "signal": asked})
        return None

    def hear(self, rank: int, message: Message) -> None:
        """Takes a message of one of the three kinds from another rank, in another thread."""
        with self._condition:
            if message["kind"] == ASK:
                self._asked = message["signal"]
            elif message["kind"] == STOP:
                self._stop = (message["after"], message["signal"])
                self._tell({"kind": NOTED})
            else:
                self._uninformed.discard(rank)
                self._condition.notify_all()

    def leave(self, rank: int) -> None:
        """A rank is done, and needs to know nothing any more."""
        with self._condition:
            self._uninformed.discard(rank)
            self._condition.notify_all()
