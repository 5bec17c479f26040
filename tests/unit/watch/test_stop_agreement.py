"""All ranks stop after the same update, whoever is asked and whenever."""

import threading
import types
from multiprocessing import Pipe

import pytest

from bert_tf.watch.join import Peers
from bert_tf.watch.watch import RankWatch
from tests.helpers.thread_ranks import LIMIT

UPDATES = 60


class Job:
    """Ranks as threads, with a barrier in every update as the gradients' sum is one."""

    def __init__(self, size):
        self.size = size
        self.together = threading.Barrier(size)
        ends = {rank: Pipe() for rank in range(1, size)}
        connections = [{rank: own for rank, (own, _) in ends.items()}]
        connections += [{0: other} for _, other in ends.values()]
        hosts = dict.fromkeys(range(size), "here")
        self.ranks = [
            RankWatch(
                types.SimpleNamespace(rank=rank, world_size=size),
                Peers(own, hosts),
                None,
                timeout_seconds=LIMIT,
            )
            for rank, own in enumerate(connections)
        ]
        self.stopped = [None] * size

    def train(self, rank, asked_at):
        for update in range(1, UPDATES + 1):
            self.together.wait(30)
            received = 10 if asked_at is not None and update >= asked_at else None
            signal = self.ranks[rank].stop_after(update, received)
            if signal is not None:
                self.stopped[rank] = (update, signal)
                return

    def run(self, asked):
        for watch in self.ranks:
            watch.start()
        threads = [
            threading.Thread(target=self.train, args=[rank, asked.get(rank)], daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for watch in self.ranks:
            watch.stop()
        return self.stopped


def test_nobody_stops_unasked():
    assert Job(3).run({}) == [None] * 3


def test_rank_0_asked_all_stop_after_the_next_update():
    assert Job(3).run({0: 5}) == [(6, 10)] * 3


@pytest.mark.parametrize("asked", [{2: 5}, {1: 7, 2: 5}, {0: 6, 1: 6, 2: 7}, {1: 1}])
@pytest.mark.parametrize("repetition", range(3))
def test_whoever_is_asked_all_stop_after_one_update(asked, repetition):
    stopped = Job(3).run(asked)
    assert len(set(stopped)) == 1
    update, signal = stopped[0]
    assert signal == 10
    assert update > min(asked.values())


def test_a_rank_that_is_done_is_not_waited_for():
    job = Job(2)
    job.ranks[0].start()
    job.ranks[1].start()
    job.ranks[1].stop()
    assert job.ranks[0].stop_after(1, 10) is None
    assert job.ranks[0].stop_after(2, 10) == 10
    job.ranks[0].stop()
