"""How to compute a forward pass: options for speed, memory and rounding, and dropout."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.precision import PrecisionPolicy


@dataclasses.dataclass(frozen=True)
class ForwardOptions:
    """Options passed to all layers of a network.

    Attributes:
      policy: precision of each class of operation.
      dropout: source of masks; None outside training.
      recompute: keep only the layers' inputs for the backward pass, which recomputes each layer
        bit for bit. Has no effect outside training.
      skip_padding: with native layers, skip rows of padding everywhere except in attention. The
        encoder then outputs zeros at padding; its outputs at tokens are equal up to rounding.
      native_layers: use the compiled operations between a layer's products, which exist for CPUs
        and for some policies (:func:`has_native_form`).
      compiled: XLA compiles the forward pass, and in training the backward pass with it.
    """

    policy: PrecisionPolicy = dataclasses.field(default_factory=PrecisionPolicy)
    dropout: Dropout | None = None
    recompute: bool = False
    skip_padding: bool = False
    native_layers: bool = False
    compiled: bool = False

    def with_dropout(self, dropout: Dropout | None) -> ForwardOptions:
        """The same options with another dropout."""
        return dataclasses.replace(self, dropout=dropout)

    def with_native_layers(self, wanted: bool = True) -> ForwardOptions:
        """The same options with native layers, if wanted and available for the policy."""
        native_layers = wanted and has_native_form(self.policy)
        return dataclasses.replace(self, native_layers=native_layers)


def has_native_form(policy: PrecisionPolicy) -> bool:
    """Whether native operations exist for the dtypes of a policy.

    Both classes of products must be float32 or both bfloat16, and all other classes float32.
    """
    products = {policy.attention, policy.dense}
    others = {policy.softmax, policy.layer_norm, policy.activations}
    return len(products) == 1 and products < {tf.float32, tf.bfloat16} and others == {tf.float32}
