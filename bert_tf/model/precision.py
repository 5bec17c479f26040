"""The floating-point dtype of each class of operation.

Variables, their gradients and all tensors passed between modules are float32. A module casts its
inputs to the dtype of its class and its result back to float32, so an operation's backward pass has
the same dtype as its forward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.config.policy_file import TYPE_OF_PRECISION

PRECISIONS = tuple(TYPE_OF_PRECISION)


@dataclasses.dataclass(frozen=True)
class PrecisionPolicy:
    """The dtype of each class of operation.

    Attributes:
      attention: the two products of attention, query with key and probabilities with value.
      dense: products with a kernel: query, key, value, the attention output and the feed-forward
        layers, the pooler, the masked-LM transform and the vocabulary logits.
      embeddings: table look-ups and their sum.
      softmax: masking of attention scores, and the attention probabilities.
      layer_norm: statistics, scale and shift.
      activations: GELU and its alternatives, the pooler's tanh, bias additions, dropout, residuals.
      logits: products of heads with few classes, and the biases of all heads.
      loss: cross entropies and their sums.
    """

    attention: tf.DType = tf.float32
    dense: tf.DType = tf.float32
    embeddings: tf.DType = tf.float32
    softmax: tf.DType = tf.float32
    layer_norm: tf.DType = tf.float32
    activations: tf.DType = tf.float32
    logits: tf.DType = tf.float32
    loss: tf.DType = tf.float32

    def describe(self) -> dict[str, str]:
        """Class of operation -> name of its dtype, for the ledger."""
        return {f.name: getattr(self, f.name).name for f in dataclasses.fields(self)}

    def changed(self, types: Mapping[str, str]) -> PrecisionPolicy:
        """This policy with the dtypes in ``types``, class -> name."""
        return dataclasses.replace(self, **{k: tf.as_dtype(name) for k, name in types.items()})

    def classes_in(self, precision: str) -> list[str]:
        """The classes that compute in ``fp32``, ``bf16`` or ``fp16``."""
        name = TYPE_OF_PRECISION[precision]
        return [operation for operation, found in self.describe().items() if found == name]


def policy_for(precision: str) -> PrecisionPolicy:
    """The policy of ``fp32``, ``fp16`` or ``bf16``; the latter two affect only products."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {PRECISIONS}")
    product_type = TYPE_OF_PRECISION[precision]
    return PrecisionPolicy().changed({"attention": product_type, "dense": product_type})


def as_policy(precision: str | PrecisionPolicy) -> PrecisionPolicy:
    """``precision`` itself, or the policy of that name."""
    return precision if isinstance(precision, PrecisionPolicy) else policy_for(precision)
