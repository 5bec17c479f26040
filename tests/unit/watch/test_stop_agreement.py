"""All ranks stop after the same update, whoever is asked and whenever."""

import threading

import pytest

from bert_tf.watch.watch import StopAgreement

UPDATES = 60


class Job:
    """Ranks as threads, with a barrier in every update as the gradients' sum is one."""

    def __init__(self, size):
        self.size = size
        self.together = threading.Barrier(size)
        self.ranks = [
            StopAgreement(
                range(1, size) if rank == 0 else [0],
                decides=rank == 0,
                tell=lambda message, rank=rank: self.deliver(rank, message),
            )
            for rank in range(size)
        ]
        self.stopped = [None] * size

    def deliver(self, sender, message):
        """From rank 0 to all, from the others to it; in a thread, so at any time later."""
        receivers = range(1, self.size) if sender == 0 else [0]
        for receiver in receivers:
            handle = self.ranks[receiver].handle
            threading.Thread(target=handle, args=[sender, dict(message)], daemon=True).start()

    def train(self, rank, asked_at):
        for update in range(1, UPDATES + 1):
            self.together.wait(30)
            received = 10 if asked_at is not None and update >= asked_at else None
            signal = self.ranks[rank].stop_after(update, received)
            if signal is not None:
                self.stopped[rank] = (update, signal)
                return

    def run(self, asked):
        threads = [
            threading.Thread(target=self.train, args=[rank, asked.get(rank)], daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
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
    job.ranks[0].leave(1)
    job.deliver = lambda *_: None
    assert job.ranks[0].stop_after(1, 10) is None
    assert job.ranks[0].stop_after(2, 10) == 10
