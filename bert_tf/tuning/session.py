"""Session configuration: threads and GPU."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from bert_tf.util.errors import UserError


@dataclasses.dataclass(frozen=True)
class SessionSettings:
    """How a session executes; affects results only by rounding.

    Attributes:
      threads: number of cores that this rank may use.
      gpu: index of this rank's GPU; None without GPUs.
    """

    threads: int
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
    return config
