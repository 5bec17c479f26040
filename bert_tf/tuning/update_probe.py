"""The update of a layer's weights, as pieces for ``speed_probe.py`` to time.

A module of its own, so that prediction can measure without importing the update.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.precision import PrecisionPolicy
from bert_tf.tuning.speed_probe import JobShapes, Pieces, num_updates, ones, ones_variable
from bert_tf.update.kernels import NativeKernels, TensorFlowKernels
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.optimizers.row import Parameter


def update_pieces(
    shapes: JobShapes, policy: PrecisionPolicy, is_native: bool, tokens: int
) -> Pieces:
    """AdamW on a layer's kernels, with the fraction of an update that ``tokens`` correspond to.

    Empty for a job that does not train. Adds operations to the current graph; raises
    ``library.MissingLibrary``.
    """
    if not shapes.trains:
        return []
    kernels = NativeKernels() if is_native else TensorFlowKernels()
    shape = [shapes.hidden_size, shapes.intermediate_size]
    weights, *moments = (ones_variable(shape, tf.float32, name) for name in ("weights", "m", "v"))
    parameter = Parameter(
        "weights",
        weights,
        gradient=tf.cast(ones(shape, policy.dense), tf.float32),
        slots=tuple(moments),
        decays=True,
    )
    update = Optimizer("adam", 0.0, kernels=kernels).update([parameter], tf.constant(1e-6))
    share = shapes.kernel_weights / (shape[0] * shape[1])
    return [(update.operation, share * num_updates(shapes, tokens))]
