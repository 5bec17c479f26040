"""Activations computed again in the backward pass instead of kept from the forward pass.

Chen et al. 2016, "Training deep nets with sublinear memory cost": a part of the network keeps its
inputs alone, and is computed a second time where its gradient is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

SCOPE = "recomputed"  # the name scope of what is computed the second time


def recomputed(
    function: Callable[[Sequence[tf.Tensor]], tf.Tensor], inputs: Sequence[tf.Tensor]
) -> tf.Tensor:
    """``function(inputs)``, of which the backward pass finds nothing but ``inputs``.

    Args:
      function: from tensors to a tensor, by operations that give the same bits each time. What it
        uses of the batch and does not get through its argument is kept, not computed again, and has
        no gradient: integers alone may come that way. Variables are among the inputs as tensors.
      inputs: gradients go to those that are floats.
    """

    @tf.custom_gradient
    def keeping_inputs(*kept):
        def gradient(dy):
            again = _once_there(kept, dy)
            wanted = [tensor for tensor in again if tensor.dtype.is_floating]
            with tf.name_scope(SCOPE):
                y = function(again)
            found = iter(tf.gradients(y, wanted, dy))
            return [next(found) if tensor.dtype.is_floating else None for tensor in again]

        return function(kept), gradient

    return keeping_inputs(*inputs)


def _once_there(tensors: Sequence[tf.Tensor], awaited: tf.Tensor) -> Sequence[tf.Tensor]:
    """The same tensors, which exist only when ``awaited`` does.

    Without that, the second computation could begin as soon as the first one can, and operations
    of equal inputs would be merged with those of the first: both keep what is to be let go.
    Grappler sees through identities and merges what follows them; not through a check of shapes.
    XLA merges within a cluster, so that these operations stay outside of all.
    """
    with tf.control_dependencies([awaited]), tf.xla.experimental.jit_scope(compile_ops=False):
        return [tf.ensure_shape(tensor, tensor.shape) for tensor in tensors]
