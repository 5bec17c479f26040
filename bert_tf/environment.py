"""The process's environment: its cores, and TensorFlow's noise and XLA before it is imported.

TensorFlow reads its variables once, when it is loaded. This module imports none of it, and only
entry scripts prepare the environment.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings


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
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        logging.getLogger("absl").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
    if use_xla:
        flags = os.environ.get("TF_XLA_FLAGS", "")
        os.environ["TF_XLA_FLAGS"] = f"{flags} --tf_xla_cpu_global_jit".strip()


def available_cores() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quiet_tensorflow(*, verbose: bool) -> None:
    """Silences the messages of TensorFlow's Python half, once it is imported."""
    if verbose:
        return
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
