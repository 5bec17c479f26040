"""What an update of a layer's weights takes, for the choices that ``speed_probe.py`` times.

In a module of its own, so that a prediction measures without importing the update.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.precision import PrecisionPolicy
from bert_tf.tuning.speed_probe import JobShapes, Pieces, held, updates, variable
from bert_tf.update.kernels import NativeKernels, TensorFlowKernels
from bert_tf.update.optimizers import AdamW, Parameter


def update_pieces(
    shapes: JobShapes, policy: PrecisionPolicy, is_native: bool, tokens: int
) -> Pieces:
    """AdamW of a layer's kernels, as far as these tokens have to pay for it.

    Nothing for a job that trains nothing. Adds to the current graph; raises
    ``library.MissingLibrary``.
    """
    if not shapes.trains:
        return []
    kernels = NativeKernels() if is_native else TensorFlowKernels()
    shape = [shapes.hidden_size, shapes.intermediate_size]
    weights, *moments = (variable(shape, tf.float32, name) for name in ("weights", "m", "v"))
    parameter = Parameter(
        weights,
        slots=tuple(moments),
        gradient=tf.cast(held(shape, policy.dense), tf.float32),
        decays=True,
    )
    update = AdamW(0.0, kernels=kernels).apply_update([parameter], tf.constant(1e-6))
    share = shapes.kernel_numbers / (shape[0] * shape[1])
    return [(update, share * updates(shapes, tokens))]
