"""Whether a job computes with the native operations, the same on all ranks."""

from __future__ import annotations

import socket

from bert_tf.errors import UserError
from bert_tf.model.blocks import native_operations
from bert_tf.native import library
from bert_tf.ranks.distribution import SingleProcess


def reason_against_native_ops(
    wanted: bool | None, *, has_gpu: bool, ranks: SingleProcess
) -> str | None:
    """Why a job computes with TensorFlow's operations, None where it has native ones. Collective.

    Args:
      wanted: true insists on native operations, false on TensorFlow's, None takes native ones
        where all ranks have them and compute on CPUs.
      has_gpu: whether the job computes on GPUs.
      ranks: all ranks.

    Raises UserError on every rank where native operations are insisted on and one of them lacks
    them.
    """
    if wanted is False:
        return "--native_ops=false"
    problem = _problem(has_gpu)
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


def _problem(has_gpu: bool) -> str | None:
    """Why this rank has no native operations, None where it has both libraries."""
    if has_gpu:
        return "the native operations are for CPUs, and this job runs on GPUs"
    try:
        native_operations()  # those of layers
        library.load()  # those of updates
    except library.MissingLibrary as error:
        return str(error)
    return None
