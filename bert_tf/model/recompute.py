"""Recomputes activations in the backward pass instead of keeping them from the forward pass.

Chen et al. 2016, "Training deep nets with sublinear memory cost": a part of the network keeps only
its inputs and is computed again when its gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

SCOPE = "recomputed"  # name scope of the recomputation


def recomputed(
    function: Callable[[Sequence[tf.Tensor]], tf.Tensor], inputs: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Returns ``function(inputs)``, keeping only ``inputs`` for the backward pass.

    Args:
      function: maps tensors to a tensor, using bit-reproducible operations. Tensors that it
        captures instead of taking as arguments are kept, not recomputed, and get no gradient, so
        only integers may be captured. Variables must be among the inputs, as tensors.
      inputs: tensors; floating-point ones get gradients.
    """

    @tf.custom_gradient
    def keeping_inputs(*kept: tf.Tensor) -> object:
        def gradient(dy: tf.Tensor) -> list[tf.Tensor | None]:
            again = _available_after(dy, kept)
            floats = [tensor for tensor in again if tensor.dtype.is_floating]
            with tf.name_scope(SCOPE):
                y = function(again)
            gradients = iter(tf.gradients(y, floats, dy))
            return [next(gradients) if tensor.dtype.is_floating else None for tensor in again]

        return function(kept), gradient

    return keeping_inputs(*inputs)


def _available_after(awaited: tf.Tensor, tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns the same tensors, available only after ``awaited`` has been computed.

    Otherwise the recomputation could start as early as the forward pass, and Grappler would merge
    operations with equal inputs from both; either would keep the activations in memory. Grappler
    merges across identities, but not across a shape check. XLA merges within a cluster, so these
    operations are kept out of all clusters.
    """
    with tf.control_dependencies([awaited]), tf.xla.experimental.jit_scope(compile_ops=False):
        return [tf.ensure_shape(tensor, tensor.shape) for tensor in tensors]
