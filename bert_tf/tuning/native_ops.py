"""Decides whether a job uses the native operations, equally on all ranks."""

from __future__ import annotations

import socket

from bert_tf.model.blocks import native_operations
from bert_tf.native import library
from bert_tf.ranks.ranks import Ranks
from bert_tf.util.errors import UserError


def reason_against_native_ops(wanted: bool | None, *, has_gpu: bool, ranks: Ranks) -> str | None:
    """The reason why a job uses TensorFlow's operations; None for native ones. Collective.

    Args:
      wanted: True requires native operations, False TensorFlow's; None uses native ones if all
        ranks have them and compute on CPUs.
      has_gpu: whether the job computes on GPUs.
      ranks: all ranks.

    Raises UserError on every rank if native operations are required but missing on any rank.
    """
    if wanted is False:
        return "--native_ops=false"
    problem = _local_problem(has_gpu)
    found = ranks.gather((socket.gethostname(), problem))
    missing = [
        problem if len(found) == 1 else f"rank {rank} on host {host}: {problem}"
        for rank, (host, problem) in enumerate(found)
        if problem
    ]
    if wanted and missing:
        raise UserError(
            f"--native_ops: {missing[0]}; drop the flag to use TensorFlow's operations."
        )
    return missing[0] if missing else None


def _local_problem(has_gpu: bool) -> str | None:
    """The reason why this rank has no native operations; None if it has both libraries."""
    if has_gpu:
        return "the native operations are for CPUs, and this job runs on GPUs"
    try:
        native_operations()  # of layers
        library.load()  # of updates
    except library.MissingLibrary as error:
        return str(error)
    return None
