"""Another communication library: a class and a row, here with ranks that are threads."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.ranks import connect as connecting
from bert_tf.ranks.ranks import Ranks, as_tables, part_of
from bert_tf.train.trainer import build_update
from bert_tf.update.batch_plan import BatchPlan
from tests.helpers.jobs import begun, job_of
from tests.helpers.regression_task import RegressionTask
from tests.helpers.settings import optimization_settings
from tests.helpers.small_span_model import CONFIG

WORLD_SIZE, UPDATES, LIMIT = 2, 4, 60  # seconds for what takes a fraction of one
_LAST_COLLECTIVE = "last_collective"


class Board:
    """Where threads leave values for each other."""

    def __init__(self):
        self.values = [None] * WORLD_SIZE
        self.together = threading.Barrier(WORLD_SIZE)
        self.numbers = iter(range(WORLD_SIZE))


class ThreadRanks(Ranks):
    """Ranks of one process; collective operations of a graph run in the order they were added."""

    world_size = local_size = WORLD_SIZE

    def __init__(self, board, num_threads, communication):
        super().__init__(num_threads)
        self._board, self.rank = board, next(board.numbers)
        self.local_rank = self.rank

    def gather(self, value):
        board = self._board
        board.values[self.rank] = value
        board.together.wait(LIMIT)
        found = list(board.values)
        board.together.wait(LIMIT)
        return found

    def _collective(self, combine, tensors, name=None):
        """What ``combine`` makes of each tensor's values of all ranks."""

        def exchange(*values):
            return [combine(of_ranks) for of_ranks in zip(*self.gather(values))]

        before = tf.get_collection_ref(_LAST_COLLECTIVE)
        with tf.control_dependencies(before[-1:]):
            found = tf.numpy_function(exchange, tensors, [t.dtype for t in tensors], name=name)
        before.append(found[0].op)
        return found

    def sum_gradients(self, gradients, variables, *, complete_at_once=False, most_rows=None):
        del complete_at_once, most_rows
        summed = self._collective(sum, as_tables(gradients))
        for tensor, variable in zip(summed, variables):
            tensor.set_shape(variable.shape)
        return summed

    def sum_gradient_parts(self, gradients, *, complete_at_once=False):
        parts = []
        for total, gradient in zip(self.sum_gradients(gradients, gradients), gradients):
            part = part_of(gradient.shape.num_elements(), self.rank, self.world_size)
            parts.append(tf.reshape(total, [-1])[part.start : part.end])
        return parts

    def sum_over_ranks(self, tensor, name):
        [total] = self._collective(sum, [tensor], name)
        total.set_shape(tensor.shape)
        return total

    def from_chief(self, tensor, name):
        [first] = self._collective(lambda values: values[0], [tensor], name)
        first.set_shape(tensor.shape)
        return first

    def concatenate(self, tensor, name):
        [joined] = self._collective(np.concatenate, [tensor], name)
        joined.set_shape([None])
        return joined

    def broadcast_hooks(self):
        return []


def weights_after_updates(ranks, size, *, shard):
    """Of a line through points that ranks share: micro batches of ``size`` on each."""
    task = RegressionTask(CONFIG)
    settings = optimization_settings(
        optimizer="lamb", learning_rate=0.1, shard_optimizer_state=shard
    )
    points = np.random.default_rng(3).normal(size=[UPDATES, size * ranks.world_size, 4])
    mine = points[:, ranks.rank * size : (ranks.rank + 1) * size].astype(np.float32)
    # Threads of its own: in those of a process whose first session has one, a rank that waits for
    # the other one keeps it from running.
    threads = tf.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=2)
    with tf.Graph().as_default(), tf.Session(config=threads) as session:
        fed = tf.placeholder(tf.float32, [size, 4])
        job = job_of(
            task,
            run=begun(ranks=ranks),
            optimization=settings,
            batch=BatchPlan(size, 1, world_size=ranks.world_size),
        )
        network = create_network(task, ForwardOptions(), seed=1)
        update = build_update(job, network, {"x": fed[:, :3], "y": fed[:, 3]})
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for batch in mine:
            session.run(update.train_op, {fed: batch})
        return session.run([variable.read_value() for variable in network.variables.all()])


@pytest.mark.parametrize("shard", [False, True])
def test_its_ranks_make_the_updates_of_one_process(monkeypatch, shard):
    board = Board()
    monkeypatch.setitem(connecting.LIBRARIES, "threads", lambda *given: ThreadRanks(board, *given))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(WORLD_SIZE))
    everyone = [connecting.connect("threads", num_threads=1) for _ in range(WORLD_SIZE)]
    found = [None] * WORLD_SIZE

    def train(ranks):
        found[ranks.rank] = weights_after_updates(ranks, 3, shard=shard)

    threads = [threading.Thread(target=train, args=[ranks], daemon=True) for ranks in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    alone = weights_after_updates(connecting.connect(None, num_threads=1), 6, shard=shard)
    for weights in found:
        assert weights is not None
        for together, expected in zip(weights, alone, strict=True):
            np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-6)
    assert all(np.abs(value).max() > 1e-3 for value in alone)
