"""The arithmetic of an update in two forms: TensorFlow's operations, and native ones in C++.

Both have the same methods, and agree but for rounding. TensorFlow's form runs everywhere; the
native one goes over memory once and needs a CPU and a library that was compiled at set-up. An
optimizer says what it does in TensorFlow's form; that it has a native one as well is an option.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import ModuleType
from typing import Union

import tensorflow.compat.v1 as tf

from bert_tf.errors import UserError
from bert_tf.model.blocks import native_operations, natively
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.native import library
from bert_tf.ranks.distribution import SingleProcess

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

    def layers(self, policy: PrecisionPolicy) -> PrecisionPolicy:
        """The policy whose layers are computed in the same form as the update: as it is."""
        return policy

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

    def layers(self, policy: PrecisionPolicy) -> PrecisionPolicy:
        """The policy with native layers, where there are operations for its types."""
        return natively(policy)

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


def choose_kernels(wanted: bool | None, *, has_gpu: bool, ranks: SingleProcess) -> Kernels:
    """The form that all ranks use. Collective.

    Args:
      wanted: true insists on the native form, false on TensorFlow's, None takes the native one
        where all ranks have it and compute on CPUs.
      has_gpu: whether the job computes on GPUs.
      ranks: all ranks.

    Raises UserError on every rank where the native form is wanted and one of them lacks it.
    """
    if wanted is False:
        return TensorFlowKernels("--native_ops=false")
    native, problem = _native_kernels(has_gpu)
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
    return TensorFlowKernels(missing[0]) if missing else native


def _native_kernels(has_gpu: bool) -> tuple[NativeKernels | None, str | None]:
    """The native form, or why this rank has none."""
    if has_gpu:
        return None, "the native operations are for CPUs, and this job runs on GPUs"
    try:
        native_operations()  # the layers': a job takes all or none
        return NativeKernels(), None
    except library.MissingLibrary as error:
        return None, str(error)
