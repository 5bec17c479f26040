"""The process's environment before TensorFlow is imported: its noise, threads and XLA.

TensorFlow reads these variables once, when it is loaded. This module imports none of it, and only
entry scripts call it.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from bert_tf.errors import UserError


def prepare_environment(*, verbose: bool, use_xla: bool) -> None:
    """Sets what TensorFlow reads when it is imported. Variables that the user set are kept.

    Args:
      verbose: let TensorFlow's start-up and deprecation messages through.
      use_xla: allow clusters on the CPU, which auto-clustering leaves alone otherwise.
    """
    if "tensorflow" in sys.modules:
        raise RuntimeError("prepare_environment must run before TensorFlow is imported")
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # The compiler of clusters logs through its own channel.
        os.environ.setdefault("TF_CPP_VMODULE", "")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        logging.getLogger("absl").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
    if use_xla:
        flags = os.environ.get("TF_XLA_FLAGS", "")
        os.environ["TF_XLA_FLAGS"] = f"{flags} --tf_xla_cpu_global_jit".strip()


def quiet_tensorflow(*, verbose: bool) -> None:
    """Silences the messages of TensorFlow's Python half, once it is imported."""
    if verbose:
        return
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)


def threads_per_rank(local_size: int, requested: int | None) -> int:
    """Threads that this rank may use: the requested number, or its share of the host's cores.

    Without this every rank on a host would start as many threads as there are cores, and two ranks
    would be slower than one (horovod issue 2804 measures a factor of three).
    """
    if requested is not None:
        if requested < 1:
            raise UserError(f"--num_threads={requested} must be at least 1.")
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // local_size)
