"""Session settings, and what the half-precision rewrite really does to a graph.

It is decided by variables that TensorFlow reads when it is loaded, so that part runs in a process
of its own.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from bert_tf.tuning.session import SessionSettings, gpu_index, session_config
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, environment

ON = rewriter_config_pb2.RewriterConfig.ON
DEFAULT = rewriter_config_pb2.RewriterConfig.DEFAULT


@pytest.mark.parametrize(("threads", "branches"), [(1, 1), (2, 2), (16, 2)])
def test_threads(threads, branches):
    config = session_config(SessionSettings(threads=threads))
    assert config.intra_op_parallelism_threads == threads
    assert config.inter_op_parallelism_threads == branches


def test_nothing_is_on_by_default():
    config = session_config(SessionSettings(threads=2))
    rewrites = config.graph_options.rewrite_options
    assert config.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.DEFAULT
    assert rewrites.auto_mixed_precision == DEFAULT
    assert rewrites.auto_mixed_precision_onednn_bfloat16 == DEFAULT
    assert config.gpu_options.visible_device_list == ""


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
    assert gpu_index(local_rank, gpu_count) == expected


def test_a_rank_without_a_gpu_is_refused():
    with pytest.raises(UserError, match=r"local rank 4 has no GPU: .* at most 4 ranks on a host"):
        gpu_index(4, 4)


def test_a_rank_sees_its_own_gpu():
    config = session_config(SessionSettings(threads=2, gpu=3))
    assert config.gpu_options.visible_device_list == "3"
    assert config.gpu_options.allow_growth
    assert config.allow_soft_placement


PROGRAM = """
import json, sys
import numpy as np
from bert_tf.util import environment
environment.prepare_environment(verbose=False)
import tensorflow.compat.v1 as tf
from bert_tf.tuning.session import SessionSettings, product_type, session_config

settings = json.loads(sys.argv[1])
config = session_config(SessionSettings(threads=2, **settings))
with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [64, 64])
    weights = tf.get_variable("w", initializer=tf.eye(64), use_resource=True)
    hidden = tf.tanh(tf.matmul(x, weights))  # numbers that bfloat16 has to round
    loss = tf.reduce_mean(tf.nn.relu(tf.matmul(hidden, weights)))
    fetches = [loss, tf.gradients(loss, weights)[0]]
    metadata = tf.RunMetadata()
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(config=config)) as session:
        fed = {x: np.full([64, 64], 1.5)}
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
    "products": products,
    "product_type": product_type(SessionSettings(threads=2, **settings)).name,
}))
"""


def execute(*, flags=None, **settings):
    """What a graph of products became under the settings."""
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


@pytest.mark.exhaustive
def test_without_the_rewrite(plain):
    found, stderr = plain
    assert {*found["products"], found["product_type"]} == {"float32"}
    assert stderr == ""


@pytest.mark.slow
def test_amp_changes_the_graph_that_is_executed(plain):
    # TensorFlow switches its oneDNN kernels, and with them the rewrite, on for CPUs that have
    # bfloat16; here every CPU is to take part, whatever that does to its speed.
    found, _ = execute(amp=True, flags={"TF_ENABLE_ONEDNN_OPTS": "1"})
    assert {*found["products"], found["product_type"]} == {"bfloat16"}
    # bfloat16 has 8 bits: the figures are close, and not the same.
    assert found["loss"] == pytest.approx(plain[0]["loss"], rel=2e-2)
    assert found["gradient"] == pytest.approx(plain[0]["gradient"], rel=2e-2)
    assert found["gradient"] != plain[0]["gradient"]


def test_sessions_made_from_settings_work():
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(SessionSettings(threads=1))) as session,
    ):
        np.testing.assert_array_equal(session.run(tf.range(3)), [0, 1, 2])
