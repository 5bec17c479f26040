"""Sessions: threads, XLA, TensorFlow's own half-precision rewrite, and what XLA compiled."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from bert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class SessionSettings:
    """How a session executes; none of it changes what is computed beyond rounding.

    Attributes:
      threads: cores that one rank may use.
      use_xla: let XLA cluster and compile what it can.
      amp: TensorFlow's graph rewrite to half precision: float16 on a GPU, bfloat16 on a CPU.
      gpu: index of this rank's GPU, None without one.
    """

    threads: int
    use_xla: bool = False
    amp: bool = False
    gpu: int | None = None


def gpu_of_a_rank(local_rank: int, gpu_count: int) -> int | None:
    """The index of a rank's GPU among the ``gpu_count`` that its process sees; None without any.

    A process that sees one GPU takes that one: a job system may show each rank its own GPU alone,
    and its index is 0 then on every rank. Raises UserError for a rank that is left without a GPU.
    """
    if gpu_count <= 1:
        return 0 if gpu_count else None
    if local_rank >= gpu_count:
        raise UserError(
            f"rank {local_rank} of this host finds {gpu_count} GPUs, one for each of the ranks "
            f"before it; start at most {gpu_count} ranks on a host."
        )
    return local_rank


def session_config(settings: SessionSettings) -> tf.ConfigProto:
    """The tf.ConfigProto for the settings."""
    config = tf.ConfigProto(
        intra_op_parallelism_threads=settings.threads,
        # One pool for branches that may run side by side; products use the intra-op threads.
        inter_op_parallelism_threads=min(2, settings.threads),
        allow_soft_placement=True,
    )
    if settings.gpu is not None:
        config.gpu_options.visible_device_list = str(settings.gpu)
        config.gpu_options.allow_growth = True
    if settings.use_xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    if settings.amp:
        rewrites = config.graph_options.rewrite_options
        rewrite = "auto_mixed_precision_onednn_bfloat16"
        if settings.gpu is not None:
            rewrite = "auto_mixed_precision"
        setattr(rewrites, rewrite, rewriter_config_pb2.RewriterConfig.ON)
    return config


def compile_first_cluster(config: tf.ConfigProto) -> None:
    """Compiles a trifle with XLA, so that what its first compilation prints is over with.

    TensorFlow announces the first cluster of a process on the terminal, past every log level.
    """
    terminal = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            session.run(tf.function(tf.negative, jit_compile=True)(tf.constant(1.0)))
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


class CompiledClusters(tf.train.SessionRunHook):
    """Counts the XLA clusters that ran as compiled code, once, on the third run.

    The first run of a cluster compiles it and a cluster may take two runs to be found worth it, so
    the third one shows the steady state.
    """

    _TRACED_RUN = 3

    def __init__(self, report: Callable[[int], None]) -> None:
        """``report`` is called once with the number of clusters."""
        self._report = report
        self._runs = 0

    def before_run(self, run_context):
        self._runs += 1
        if self._runs != self._TRACED_RUN:
            return None
        return tf.train.SessionRunArgs(
            None, options=tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
        )

    def after_run(self, run_context, run_values):
        if self._runs == self._TRACED_RUN:
            self._report(count_compiled_clusters(run_values.run_metadata))


def count_compiled_clusters(run_metadata: tf.RunMetadata) -> int:
    """The number of different clusters that a traced run executed as compiled code."""
    ran = set()
    for device in run_metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if "= _XlaRun(" in node.timeline_label:
                ran.add(node.node_name)
    return len(ran)
