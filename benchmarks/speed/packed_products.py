"""Products with packed sides, in native operations: how fast the processor itself multiplies.

TensorFlow's products lay out both sides again in every call. Here the kernel of a dense layer is
packed once per update (``product_ops.cc``), for bfloat16 on CPUs that multiply it. Training does
not use them: docs/measurements/speed.md says why.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.native import library
from bert_tf.native.build import build, given_compiler

_SOURCE = Path(__file__).with_name("product_ops.cc")


def packed_product(rows: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """[R, inputs] by [inputs, outputs] -> [R, outputs], all bfloat16, summed in float32."""
    operations = product_operations()
    forward, backward = operations.bert_tf_pack_kernel(kernel=kernel)
    return operations.bert_tf_dense(x=rows, kernel=kernel, forward=forward, backward=backward)


def instructions() -> str:
    """The instructions of these products here: ``amx``, ``avx512_bf16`` or, without, ``""``."""
    product_operations()
    found = ctypes.CDLL(str(library.library_path(_SOURCE))).bert_tf_product_instructions
    found.restype = ctypes.c_char_p
    return found().decode()


@functools.lru_cache  # a gradient can only be registered once
def product_operations() -> Any:
    """Compiles the operations, if they are not, loads them and registers their gradient, once."""
    build(given_compiler(), _SOURCE)
    operations = library.load(_SOURCE)
    tf.no_gradient("BertTfPackKernel")

    @tf.RegisterGradient("BertTfDense")
    def _dense(operation: tf.Operation, dy: tf.Tensor) -> object:
        x, _, _, backward = operation.inputs
        dx, dkernel = operations.bert_tf_dense_grad(x=x, dy=dy, backward=backward)
        return dx, dkernel, None, None

    return operations
