"""The cases as operations of one graph, which every rank builds and runs in the same order.

All updates use the same network and, unless they shard its state, the same optimizer: a session
holds the weights once, whatever the number of cases, and runs what a case needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.communication import cases as kinds
from benchmarks.communication.cases import EMBEDDING_TABLE, UPDATES, Case
from benchmarks.speed.ours import task_of
from benchmarks.speed.steps import StepJob
from bert_tf.config.settings import CommunicationSettings
from bert_tf.model.task import Network, create_network
from bert_tf.ranks.connect import connect
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tuning.arithmetic import Arithmetic, SessionSettings, session_config
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import kernels_for
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op

_LEARNING_RATE = 1e-6  # keeps the weights almost unchanged; they do not affect the time


def build_cases(
    cases: Sequence[Case],
    job: StepJob,
    ranks: SingleProcess,
    *,
    choice: Arithmetic,
    horovod: bool,
) -> dict[Case, tf.Operation]:
    """Adds the cases and the network's variables to the current graph.

    Args:
      cases: the cases to add.
      job: the micro batch of a rank.
      ranks: the connected ranks.
      choice: precision and operations.
      horovod: whether the ranks are connected through Horovod.
    """
    network = create_network(task_of(job), choice.options, seed=1)
    rate = tf.constant(_LEARNING_RATE)
    kernels = kernels_for(choice.against_native_ops)
    whole = Optimizer("adam", rate, kernels=kernels)
    built = {}
    for case in cases:
        with tf.name_scope(str(case).replace(":", "_")):
            if case.kind == kinds.COMPUTE or not horovod:
                communicator = SingleProcess(ranks.threads)
            else:
                how = CommunicationSettings(compression=case.compression)
                communicator = connect("horovod", num_threads=ranks.threads, communication=how)
            if case.kind in UPDATES:
                optimizer = whole
                if case.kind == kinds.SHARDED:
                    optimizer = Optimizer(
                        "adam", rate, kernels=kernels, ranks=communicator, shard_state=True
                    )
                built[case] = _update(case, job, network, optimizer, rate, communicator)
            else:
                built[case] = _collective(case, communicator)
    return built


def _update(
    case: Case,
    job: StepJob,
    network: Network,
    optimizer: Optimizer,
    rate: tf.Tensor,
    ranks: SingleProcess,
) -> tf.Operation:
    plan = BatchPlan(job.batch_size, case.number, ranks.world_size)
    batch = job.batch(plan.rank_batch_size, seed=ranks.rank)
    features = {name: _held(name, values) for name, values in batch.items()}
    # The second update uses the counts created by the first.
    shared = tf.variable_scope(
        tf.get_variable_scope(), reuse=tf.AUTO_REUSE, auxiliary_name_scope=False
    )
    with shared:
        outputs = build_train_op(
            network,
            features,
            plan=plan,
            optimizer=optimizer,
            learning_rate=rate,
            loss_scale=LossScale(),
            ranks=ranks,
            settings=UpdateSettings(
                allreduce_every_micro_batch=case.kind == kinds.EVERY_MICRO_BATCH
            ),
        )
    return outputs.train_op


def _collective(case: Case, ranks: SingleProcess) -> tf.Operation:
    """The communication of a case, without the computation that would overlap it in an update."""
    if case.kind == kinds.COMMUNICATION:
        variables = tf.trainable_variables()
        # Values with the shapes of the gradients: the variables themselves.
        summed = ranks.sum_gradients([variable.read_value() for variable in variables], variables)
        # Consumed, since a function whose results are unused is not run, including its allreduces.
        return tf.add_n([tf.reshape(gradient, [-1])[0] for gradient in summed]).op
    if case.kind == kinds.ALLREDUCE:
        elements = max(1, case.number // tf.float32.size)
        ones = _held("elements", np.ones(elements, np.float32))
        return ranks.sum_over_ranks(ones, name="summed").op
    assert case.kind in (kinds.EMBEDDING_DENSE, kinds.EMBEDDING_ROWS)
    words, width = EMBEDDING_TABLE
    values = _held("rows", np.ones([case.number, width], np.float32))
    draw = np.random.default_rng(ranks.rank)
    indices = tf.constant(draw.integers(words, size=case.number), tf.int32)
    if case.kind == kinds.EMBEDDING_DENSE:
        table = tf.math.unsorted_segment_sum(values, indices, words)
        return ranks.sum_over_ranks(table, name="summed").op
    gradient = tf.IndexedSlices(values, indices, tf.constant(EMBEDDING_TABLE))
    summed = ranks.sum_over_ranks(gradient, name="summed")
    # The optimizer updates every row, so it needs the table in both cases.
    return tf.math.unsorted_segment_sum(summed.values, summed.indices, words).op


def _held(name: str, values: np.ndarray) -> tf.Tensor:
    """Values kept by the session, so that no run has to create or copy them."""
    scope = tf.get_default_graph().get_name_scope()
    held = tf.get_variable(
        f"{scope}/{name}", initializer=values, trainable=False, use_resource=True
    )
    return held.read_value()


def gradient_bytes() -> int:
    """Total bytes of the float32 gradients of the current graph's network."""
    return sum(v.shape.num_elements() * tf.float32.size for v in tf.trainable_variables())


def time_cases(
    operations: Mapping[Case, tf.Operation], ranks: SingleProcess, *, turns: int, micro_batches: int
) -> dict[Case, list[float]]:
    """Seconds of one run of each case on the slowest rank, one value per turn.

    A turn goes through all cases and runs each for about ``micro_batches`` micro batches, at least
    once. Every case starts on all ranks at the same time. One run of each case before the first
    turn is not counted.
    """
    barrier = ranks.sum_over_ranks(tf.constant(1.0), name="barrier")
    taken: dict[Case, list[float]] = {case: [] for case in operations}
    with tf.Session(config=session_config(SessionSettings(ranks.threads))) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for turn in range(turns + 1):
            for case, operation in operations.items():
                runs = max(1, round(micro_batches / case.micro_batches)) if turn else 1
                session.run(barrier)
                start = time.perf_counter()
                for _ in range(runs):
                    session.run(operation)
                if turn:
                    taken[case].append((time.perf_counter() - start) / runs)
    of_all_ranks = ranks.gather(list(taken.values()))
    return {
        case: [max(seconds) for seconds in zip(*(times[number] for times in of_all_ranks))]
        for number, case in enumerate(taken)
    }
