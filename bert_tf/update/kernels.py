"""The arithmetic of an update in two forms: TensorFlow's operations, and native ones in C++.

Both have the same methods, and agree but for rounding. TensorFlow's form runs everywhere; the
native one goes over memory once and needs a CPU and a library that was compiled at set-up. An
optimizer says what it does in TensorFlow's form; that it has a native one as well is an option.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Union

import tensorflow.compat.v1 as tf

from bert_tf.native import library

# Numbers that TensorFlow adds up in one thread: with ten times as many it takes several.
_LONGEST_ROW = 1024


class TensorFlowKernels:
    """TensorFlow's operations, several a variable.

    Args:
      reason: why not the native ones, for the record.

    Attributes:
      operations: native ones, of which there are none here.
    """

    operations: ModuleType | None = None

    def __init__(self, reason: str = "asked for"):
        self.description = f"TensorFlow's ({reason})"

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums over micro batches with those of one more, float32."""
        return [total + gradient for total, gradient in zip(sums, gradients)]

    def global_norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The root of the sum of all squares, a float32 scalar."""
        with tf.name_scope("global_norm"):
            return euclidean_norm(gradients)


def times(tensor: tf.Tensor | None, factor: tf.Tensor | None) -> tf.Tensor | None:
    """The product of two tensors, either of which may be None for 1."""
    if tensor is None or factor is None:
        return factor if tensor is None else tensor
    return tensor * factor


def euclidean_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The root of the sum of all squares: the same bits with any number of threads.

    TensorFlow cuts the sum over a large tensor into as many parts as it has threads, so that ranks
    of unequal hosts would not clip by the same factor. A sum over rows it gives to threads row by
    row, and one of few numbers to a single thread.
    """
    norms = tf.concat([_norms_of_rows(tensor) for tensor in tensors], axis=0)
    while norms.shape[0] > _LONGEST_ROW:
        norms = _norms_of_rows(norms)
    return tf.math.reduce_euclidean_norm(norms)


def _norms_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    """[N] of the same norm, N being 1 for each row, or a vector's numbers where they are few."""
    size = tensor.shape.num_elements()
    if size <= _LONGEST_ROW:
        return tf.reshape(tensor, [size])
    if size == tensor.shape[-1]:
        padded = tf.pad(tf.reshape(tensor, [size]), [[0, -size % _LONGEST_ROW]])
        tensor = tf.reshape(padded, [-1, _LONGEST_ROW])
    return tf.reshape(tf.math.reduce_euclidean_norm(tensor, axis=-1), [-1])


class NativeKernels:
    """Native operations: one for all variables. For CPUs; methods as of :class:`TensorFlowKernels`.

    They give the same bits with any number of threads. Raises ``library.MissingLibrary``.

    Attributes:
      operations: a function for each.
    """

    description = "native"

    def __init__(self) -> None:
        self.operations = library.load()

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums over micro batches with those of one more, float32: in the memory of the sums."""
        made = [without_cast(gradient) for gradient in gradients]
        return list(self.operations.bert_tf_add_gradients(sums=sums, gradients=made))

    def global_norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The root of the sum of all squares, summed in float64: a float32 scalar."""
        return self.operations.bert_tf_global_norm(values=[without_cast(g) for g in gradients])


def without_cast(gradient: tf.Tensor) -> tf.Tensor:
    """A gradient without the cast to float32 that ends a backward pass in bfloat16.

    The native operations read both types, and one pass over memory less is made.
    """
    if gradient.op.type == "Cast" and gradient.op.inputs[0].dtype == tf.bfloat16:
        return gradient.op.inputs[0]
    return gradient


Kernels = Union[TensorFlowKernels, NativeKernels]


def kernels_for(reason: str | None) -> Kernels:
    """TensorFlow's form for a ``reason``, the native form without one.

    The reason is that of ``tuning.native_ops``. Raises ``library.MissingLibrary``.
    """
    return NativeKernels() if reason is None else TensorFlowKernels(reason)
