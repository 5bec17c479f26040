"""Recomputes activations in the backward pass instead of keeping them from the forward pass.

Chen et al. 2016, "Training deep nets with sublinear memory cost": a part of the network keeps only
its inputs and is computed again when its gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.model.compilation import available_after

SCOPE = "recomputed"  # name scope of the recomputation


def recomputed(
    function: Callable[[Sequence[tf.Tensor]], tf.Tensor],
    inputs: Sequence[tf.Tensor],
    *,
    compiled: bool = False,
) -> tf.Tensor:
    """Returns ``function(inputs)``, keeping only ``inputs`` for the backward pass.

    Args:
      function: maps tensors to a tensor, using bit-reproducible operations. Tensors that it
        captures instead of taking as arguments are kept, not recomputed, and get no gradient, so
        only integers may be captured. Variables must be among the inputs, as tensors.
      inputs: tensors; floating-point ones get gradients.
      compiled: whether XLA compiles the operations.
    """

    @tf.custom_gradient
    def keeping_inputs(*kept: tf.Tensor) -> object:
        def gradient(dy: tf.Tensor) -> list[tf.Tensor | None]:
            after = available_after if compiled else _available_after
            again = after(dy, kept)
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
    merges across identities, but not across a shape check.
    """
    with tf.control_dependencies([awaited]):
        return [tf.ensure_shape(tensor, tensor.shape) for tensor in tensors]
