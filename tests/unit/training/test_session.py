"""Session settings, and what XLA and the half-precision rewrite really do to a graph.

Both are decided by variables that TensorFlow reads when it is loaded, so these parts run in a
process of their own.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from bert_tf.errors import UserError
from bert_tf.training.session import (
    CompiledClusters,
    SessionSettings,
    compile_first_cluster,
    count_compiled_clusters,
    gpu_of_a_rank,
    session_config,
)
from tests.support import ROOT, environment

ON = rewriter_config_pb2.RewriterConfig.ON
DEFAULT = rewriter_config_pb2.RewriterConfig.DEFAULT


@pytest.mark.parametrize(("threads", "branches"), [(1, 1), (2, 2), (16, 2)])
def test_threads(threads, branches):
    config = session_config(SessionSettings(threads=threads))
    assert config.intra_op_parallelism_threads == threads
    assert config.inter_op_parallelism_threads == branches


def test_nothing_is_switched_on_unasked():
    config = session_config(SessionSettings(threads=2))
    rewrites = config.graph_options.rewrite_options
    assert config.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.DEFAULT
    assert rewrites.auto_mixed_precision == DEFAULT
    assert rewrites.auto_mixed_precision_onednn_bfloat16 == DEFAULT
    assert config.gpu_options.visible_device_list == ""


def test_xla():
    config = session_config(SessionSettings(threads=2, use_xla=True))
    assert config.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.ON_1


@pytest.mark.parametrize(
    ("gpu", "on", "off"),
    [
        (None, "auto_mixed_precision_onednn_bfloat16", "auto_mixed_precision"),
        (0, "auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16"),
    ],
)
def test_amp_rewrites_to_what_the_device_has(gpu, on, off):
    rewrites = session_config(
        SessionSettings(threads=2, amp=True, gpu=gpu)
    ).graph_options.rewrite_options
    assert getattr(rewrites, on) == ON
    assert getattr(rewrites, off) == DEFAULT


@pytest.mark.parametrize(
    ("local_rank", "gpu_count", "expected"),
    [(0, 0, None), (3, 0, None), (0, 8, 0), (7, 8, 7), (0, 1, 0), (7, 1, 0)],
    ids=["no GPU", "no GPU, rank 3", "first", "last", "the only one", "each its own"],
)
def test_one_gpu_for_each_rank_of_a_host(local_rank, gpu_count, expected):
    assert gpu_of_a_rank(local_rank, gpu_count) == expected


def test_a_rank_without_a_gpu_is_told():
    with pytest.raises(UserError, match=r"rank 4 .* finds 4 GPUs.* at most 4 ranks on a host"):
        gpu_of_a_rank(4, 4)


def test_a_rank_sees_its_own_gpu():
    config = session_config(SessionSettings(threads=2, gpu=3))
    assert config.gpu_options.visible_device_list == "3"
    assert config.gpu_options.allow_growth
    assert config.allow_soft_placement


def test_the_third_run_is_traced_and_reported_once():
    reported = []
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        product = tf.linalg.matmul(tf.ones([2, 2]), tf.ones([2, 2]))
        with tf.train.MonitoredSession(hooks=[CompiledClusters(reported.append)]) as session:
            for run in range(1, 6):
                session.run(product)
                assert reported == ([] if run < 3 else [0])


def test_clusters_are_counted_once_whatever_the_number_of_runs():
    metadata = tf.RunMetadata()
    for device in ("cpu:0", "cpu:1"):
        nodes = metadata.step_stats.dev_stats.add(device=device).node_stats
        nodes.add(node_name="cluster_0", timeline_label="cluster_0 = _XlaRun(x, y)")
        nodes.add(node_name="cluster_0", timeline_label="cluster_0 = _XlaRun(x, y)")
        nodes.add(node_name="compile_0", timeline_label="compile_0 = _XlaCompile(x)")
        nodes.add(node_name="product", timeline_label="product = MatMul(x, y)")
    metadata.step_stats.dev_stats[1].node_stats.add(
        node_name="cluster_1", timeline_label="cluster_1 = _XlaRun(z)"
    )
    assert count_compiled_clusters(metadata) == 2


PROGRAM = """
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
from bert_tf.training.session import (
    CompiledClusters, SessionSettings, compile_first_cluster, session_config
)

settings = json.loads(sys.argv[1])
config = session_config(SessionSettings(threads=2, **settings))
if settings.get("use_xla"):
    compile_first_cluster(config)
    print("still heard", file=sys.stderr)
clusters = []
with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [64, 64])
    weights = tf.get_variable("w", initializer=tf.eye(64), use_resource=True)
    # Products as the rewrite wants them, element-wise work as XLA wants it.
    hidden = tf.nn.relu(tf.matmul(x, weights))
    for number in range(4):
        hidden = tf.tanh(hidden * 0.5 + float(number)) * hidden + 1.0
    loss = tf.reduce_mean(tf.nn.relu(tf.matmul(hidden, weights)))
    fetches = [loss, tf.gradients(loss, weights)[0]]
    metadata = tf.RunMetadata()
    with tf.train.MonitoredSession(
        session_creator=tf.train.ChiefSessionCreator(config=config),
        hooks=[CompiledClusters(clusters.append)],
    ) as session:
        fed = {x: np.full([64, 64], 1.5)}
        for _ in range(3):
            session.run(fetches, fed)
        found, gradient = session.run(
            fetches,
            fed,
            options=tf.RunOptions(output_partition_graphs=True),
            run_metadata=metadata,
        )
products = [
    tf.as_dtype(node.attr["T"].type).name
    for graph in metadata.partition_graphs
    for node in graph.node
    if "MatMul" in node.op
]
print(json.dumps({
    "loss": float(found),
    "gradient": float(np.sum(gradient)),
    "clusters": clusters,
    "products": products,
}))
"""


def execute(*, flags=None, **settings):
    """What a graph of products and element-wise work became under the settings."""
    variables = {k: v for k, v in environment().items() if k != "TF_XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(settings)],
        cwd=ROOT,
        env={**variables, **(flags or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def plain():
    return execute()


def test_without_xla_and_rewrite(plain):
    found, stderr = plain
    assert found["clusters"] == [0]
    assert set(found["products"]) == {"float32"}
    assert stderr == ""


def test_xla_compiles_clusters_on_a_cpu_that_is_told_to(plain):
    flags = {"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}
    found, stderr = execute(use_xla=True, flags=flags)
    [clusters] = found["clusters"]
    assert clusters > 0
    # The notice of a process's first cluster is swallowed, and nothing that comes after it.
    assert stderr == "still heard\n"
    assert found["loss"] == pytest.approx(plain[0]["loss"], rel=1e-5)
    assert found["gradient"] == pytest.approx(plain[0]["gradient"], rel=1e-5)


def test_amp_changes_the_graph_that_is_executed(plain):
    # TensorFlow switches its oneDNN kernels, and with them the rewrite, on for CPUs that have
    # bfloat16; here every CPU is to take part, whatever that does to its speed.
    found, _ = execute(amp=True, flags={"TF_ENABLE_ONEDNN_OPTS": "1"})
    assert set(found["products"]) == {"bfloat16"}
    # bfloat16 has 8 bits: the figures are close, and not the same.
    assert found["loss"] == pytest.approx(plain[0]["loss"], rel=2e-2)
    assert found["gradient"] == pytest.approx(plain[0]["gradient"], rel=2e-2)
    assert found["gradient"] != plain[0]["gradient"]


def test_the_first_cluster_leaves_the_terminal_as_it_was(capfd):
    descriptors = len(os.listdir("/proc/self/fd"))
    compile_first_cluster(session_config(SessionSettings(threads=2)))
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_terminal_is_given_back_when_compiling_fails(capfd, monkeypatch):
    def fail(*_, **__):
        os.write(2, b"swallowed\n")
        raise RuntimeError("no compiler")

    monkeypatch.setattr(tf, "Session", fail)
    with pytest.raises(RuntimeError, match="no compiler"):
        compile_first_cluster(session_config(SessionSettings(threads=2)))
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


def test_sessions_made_from_settings_work():
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(SessionSettings(threads=1))) as session,
    ):
        np.testing.assert_array_equal(session.run(tf.range(3)), [0, 1, 2])
