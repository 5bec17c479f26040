"""Ranks that are threads of one process, for tests of what ranks do together."""

from __future__ import annotations

import threading
import types
from typing import Any, Callable

from bert_tf.ranks.ranks import SingleProcess

LIMIT = 60  # seconds for what takes a fraction of one


class ThreadRank(SingleProcess):
    """A rank that is a thread; values are exchanged at a barrier."""

    def __init__(self, rank: int, board: types.SimpleNamespace) -> None:
        """``board`` holds the values of all ranks and the barrier."""
        super().__init__(1)
        self.rank, self.board, self.world_size = rank, board, len(board.values)

    def gather(self, value: Any) -> list[Any]:
        """As in the base class."""
        self.board.values[self.rank] = value
        self.board.together.wait(LIMIT)
        values = list(self.board.values)
        self.board.together.wait(LIMIT)
        return values


def run_ranks(size: int, action: Callable[[ThreadRank], Any]) -> list[Any]:
    """``action`` of each rank, in a thread; what it returned or raised."""
    board = types.SimpleNamespace(values=[None] * size, together=threading.Barrier(size))
    found = [None] * size

    def run(rank):
        try:
            found[rank] = action(ThreadRank(rank, board))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    return found
