"""Updates of a very small network with and without XLA, for test_xla.py.

``python xla_program.py OUT.json`` runs in a process of its own, since TensorFlow reads what it
needs for XLA on a CPU when it is loaded. Whoever starts it counts the compilations that TensorFlow
logs on stderr, between the lines that start with ``MARK``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.ranks.single import SingleProcess
from bert_tf.train.xla import count_compiled_clusters, traced
from bert_tf.tuning.session import SessionSettings, session_config
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import TensorFlowKernels
from bert_tf.update.loss_scale import NoLossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op
from tests.parallel.updates_program import GLOBAL_BATCH, Kind, global_batches, make_network

MARK = "-- "
UPDATES = 200
LENGTHS = (16, 8)


def mark(text):
    """Divides the log."""
    print(f"{MARK}{text}", file=sys.stderr, flush=True)


def batch_of(length):
    """The first batch, cut to ``length``; answers lie in its first five tokens."""
    batch = {name: value[0] for name, value in global_batches("squad").items()}
    return {n: v[:, :length] if v.shape[-1] > 1 else v for n, v in batch.items()}


def products(metadata):
    """The operations on matrices that a traced run executed outside clusters."""
    return sorted(
        node.node_name
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if "MatMul" in node.timeline_label.split("= ")[-1].split("(")[0]
    )


def train(use_xla):
    """What some updates did."""
    settings = SessionSettings(threads=1, use_xla=use_xla)
    kernels = TensorFlowKernels()
    found = {"losses": [], "norms": []}
    with tf.Graph().as_default():
        fed = {
            name: tf.placeholder(tf.int32, [GLOBAL_BATCH, None if value.shape[1] > 1 else 1])
            for name, value in batch_of(LENGTHS[0]).items()
        }
        network = make_network(Kind(task="squad", dropout=0.1), native=False, seed=3)
        rate = tf.constant(1e-3)
        outputs = build_train_op(
            network,
            fed,
            plan=BatchPlan(GLOBAL_BATCH, 1, 1),
            optimizer=Optimizer("adam", rate, kernels=kernels),
            learning_rate=rate,
            loss_scale=NoLossScale(),
            ranks=SingleProcess(1),
            settings=UpdateSettings(seed=11),
        )
        weights = tf.concat([tf.reshape(v, [-1]) for v in tf.trainable_variables()], 0)
        [sums] = outputs.term_sums.values()
        fetches = [outputs.train_op, sums.loss, outputs.gradient_norm]
        with tf.Session(config=session_config(settings)) as session:
            session.run(tf.global_variables_initializer())
            found["initial_weights"] = session.run(weights).tolist()

            def update(length, **options):
                feed = {fed[name]: value for name, value in batch_of(length).items()}
                _, loss, norm = session.run(fetches, feed, **options)
                found["losses"].append(float(loss))
                found["norms"].append(float(norm))

            def update_traced():
                metadata = tf.RunMetadata()
                update(LENGTHS[0], options=traced(), run_metadata=metadata)
                return metadata

            mark(f"first updates {use_xla}")
            first = update_traced()
            update(LENGTHS[0])
            mark(f"steady updates {use_xla}")
            for _ in range(UPDATES - 1):
                update(LENGTHS[0])
            last = update_traced()
            mark(f"another length {use_xla}")
            for _ in range(3):
                update(LENGTHS[1])
            mark(f"both lengths {use_xla}")
            for length in LENGTHS * 3:
                update(length)
            mark("end")
    found["clusters"] = [count_compiled_clusters(metadata) for metadata in (first, last)]
    found["products"] = products(last)
    return found


if __name__ == "__main__":
    tf.disable_eager_execution()
    results = {"plain": train(use_xla=False), "xla": train(use_xla=True)}
    Path(sys.argv[1]).write_text(json.dumps(results))
