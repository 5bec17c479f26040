"""Session configuration: threads, GPU and TensorFlow's half-precision rewrite."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from bert_tf.util.errors import UserError


@dataclasses.dataclass(frozen=True)
class SessionSettings:
    """How a session executes; affects results only by rounding.

    Attributes:
      threads: number of cores that this rank may use.
      amp: TensorFlow's graph rewrite to half precision: float16 on GPUs, bfloat16 on CPUs.
      gpu: index of this rank's GPU; None without GPUs.
    """

    threads: int
    amp: bool = False
    gpu: int | None = None


def gpu_index(local_rank: int, gpu_count: int) -> int | None:
    """The index of a rank's GPU among the ``gpu_count`` that its process sees; None without GPUs.

    A process that sees a single GPU uses it: a job scheduler may expose to each rank only its own
    GPU, which then has index 0 on every rank. Raises UserError if no GPU is left for a rank.
    """
    if gpu_count <= 1:
        return 0 if gpu_count else None
    if local_rank >= gpu_count:
        raise UserError(
            f"local rank {local_rank} has no GPU: there are {gpu_count} GPUs on this host, one for "
            f"each of the ranks before it; start at most {gpu_count} ranks on a host."
        )
    return local_rank


def session_config(settings: SessionSettings) -> tf.ConfigProto:
    """Converts the settings to a tf.ConfigProto."""
    config = tf.ConfigProto(
        intra_op_parallelism_threads=settings.threads,
        # For branches that can run in parallel; products use the intra-op threads.
        inter_op_parallelism_threads=min(2, settings.threads),
        allow_soft_placement=True,
    )
    if settings.gpu is not None:
        config.gpu_options.visible_device_list = str(settings.gpu)
        config.gpu_options.allow_growth = True
    if settings.amp:
        rewrites = config.graph_options.rewrite_options
        rewrite = "auto_mixed_precision_onednn_bfloat16"
        if settings.gpu is not None:
            rewrite = "auto_mixed_precision"
        setattr(rewrites, rewrite, rewriter_config_pb2.RewriterConfig.ON)
    return config


def product_type(settings: SessionSettings) -> tf.DType:
    """The data type in which a session with these settings multiplies float32 matrices."""
    metadata = tf.RunMetadata()
    with tf.Graph().as_default():
        matrix = tf.placeholder(tf.float32, [8, 8])
        # The fetched tensor itself keeps its type.
        total = tf.reduce_sum(tf.matmul(matrix, matrix))
        with tf.Session(config=session_config(settings)) as session:
            session.run(
                total,
                {matrix: np.zeros([8, 8])},
                options=tf.RunOptions(output_partition_graphs=True),
                run_metadata=metadata,
            )
    nodes = (node for graph in metadata.partition_graphs for node in graph.node)
    return next(tf.as_dtype(node.attr["T"].type) for node in nodes if "MatMul" in node.op)
