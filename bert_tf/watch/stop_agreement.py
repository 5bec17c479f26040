"""Makes all ranks stop after the same update when one of them is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Callable

from bert_tf.watch.rank_links import Message

ASK, STOP, NOTED = "ask to stop", "stop", "stop noted"


class StopAgreement:
    """One rank's view of when to stop.

    Rank 0 chooses the update after the one it has just finished, and starts it only once every rank
    has been told. No rank can finish it before rank 0 has started it, so all stop after it.
    """

    def __init__(self, others: Iterable[int], *, decides: bool, tell: Callable[[Message], None]):
        """``others`` are the ranks to which ``tell`` sends; ``decides`` is true on rank 0."""
        self._decides = decides
        self._tell = tell
        self._condition = threading.Condition()
        self._uninformed = set(others)
        self._requested: int | None = None
        self._stop: tuple[int, int] | None = None  # update after which to stop, and signal

    def stop_after(self, update: int, received: int | None) -> int | None:
        """Like ``Watch.stop_after``; on rank 0 it may wait for the other ranks."""
        with self._condition:
            if self._stop is not None:
                last, number = self._stop
                return number if update >= last else None
            requested = received or self._requested
            if requested and self._decides:
                self._stop = (update + 1, requested)
                self._tell({"kind": STOP, "after": update + 1, "signal": requested})
                self._condition.wait_for(lambda: not self._uninformed)
            elif requested:
                self._tell({"kind": ASK, "signal": requested})
        return None

    def handle(self, rank: int, message: Message) -> None:
        """Handles a message of the three kinds from another rank; called in another thread."""
        with self._condition:
            if message["kind"] == ASK:
                self._requested = message["signal"]
            elif message["kind"] == STOP:
                self._stop = (message["after"], message["signal"])
                self._tell({"kind": NOTED})
            else:
                self._uninformed.discard(rank)
                self._condition.notify_all()

    def leave(self, rank: int) -> None:
        """Notes that a rank has finished and need not be informed any more."""
        with self._condition:
            self._uninformed.discard(rank)
            self._condition.notify_all()
