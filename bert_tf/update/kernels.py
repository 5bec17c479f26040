"""The arithmetic of an update in two implementations: TensorFlow operations and native C++ ones.

Both have the same methods and agree up to rounding. The TensorFlow implementation runs everywhere;
the native one makes a single pass over memory and needs a CPU and the library compiled at set-up.
Every optimizer has a TensorFlow implementation; a native one is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Union

import tensorflow.compat.v1 as tf

from bert_tf.native import library
from bert_tf.update.optimizers.row import euclidean_norm


class TensorFlowKernels:
    """TensorFlow operations, several per variable.

    Args:
      reason: why native operations are not used; shown in the ledger.

    Attributes:
      operations: None, since there are no native operations.
    """

    operations: ModuleType | None = None

    def __init__(self, reason: str = "requested"):
        self.description = f"TensorFlow's ({reason})"

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the float32 gradients of another micro batch to the sums."""
        return [total + gradient for total, gradient in zip(sums, gradients)]

    def global_norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The global norm, a float32 scalar."""
        with tf.name_scope("global_norm"):
            return euclidean_norm(gradients)

    def sums_of_squares(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """The sum of squares of each tensor, float64 [number of tensors]."""
        norms = tf.stack([euclidean_norm([tensor]) for tensor in tensors])
        return tf.square(tf.cast(norms, tf.float64))


def times(tensor: tf.Tensor | None, factor: tf.Tensor | None) -> tf.Tensor | None:
    """Multiplies two tensors; None means 1."""
    if tensor is None or factor is None:
        return factor if tensor is None else tensor
    return tensor * factor


class NativeKernels:
    """Native CPU operations, one for all variables; same methods as :class:`TensorFlowKernels`.

    Results are bit-equal for any number of threads. Raises ``library.MissingLibrary``.

    Attributes:
      operations: module with one function per operation.
    """

    description = "native"

    def __init__(self) -> None:
        self.operations = library.load()

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the float32 gradients of another micro batch to the sums in place."""
        uncast = [without_cast(gradient) for gradient in gradients]
        return list(self.operations.bert_tf_add_gradients(sums=sums, gradients=uncast))

    def global_norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The global norm, accumulated in float64 and returned as a float32 scalar."""
        return self.operations.bert_tf_global_norm(values=[without_cast(g) for g in gradients])

    def sums_of_squares(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """The sum of squares of each tensor, accumulated in float64: [number of tensors]."""
        return self.operations.bert_tf_sums_of_squares(values=[without_cast(t) for t in tensors])


def without_cast(gradient: tf.Tensor) -> tf.Tensor:
    """Removes the cast to float32 at the end of a bfloat16 backward pass.

    The native operations read both dtypes, which saves one pass over memory.
    """
    if gradient.op.type == "Cast" and gradient.op.inputs[0].dtype == tf.bfloat16:
        return gradient.op.inputs[0]
    return gradient


Kernels = Union[TensorFlowKernels, NativeKernels]


def kernels_for(reason: str | None) -> Kernels:
    """TensorFlow's kernels if there is a ``reason`` (``tuning.hardware``), else native ones.

    Raises ``library.MissingLibrary``.
    """
    return NativeKernels() if reason is None else TensorFlowKernels(reason)
