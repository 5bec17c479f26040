"""How a forward pass is computed: what may change speed, memory and rounding, and dropout."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.precision import PrecisionPolicy


@dataclasses.dataclass(frozen=True)
class ForwardOptions:
    """Handed through all layers of a network.

    Attributes:
      policy: precision of each class of operation.
      dropout: source of masks; None outside training.
      recompute: keep only the layers' inputs for the backward pass, which computes each layer again
        and has the same bits. Without effect outside training.
      skip_padding: with native layers, compute no rows of padding outside of the attention. The
        encoder's outputs at padding are then zeros; those of tokens are the same, but for
        rounding.
      native_layers: compute what lies between a layer's products with the compiled operations,
        which exist for CPUs and for some policies (:func:`has_native_form`).
    """

    policy: PrecisionPolicy = dataclasses.field(default_factory=PrecisionPolicy)
    dropout: Dropout | None = None
    recompute: bool = False
    skip_padding: bool = False
    native_layers: bool = False

    def with_dropout(self, dropout: Dropout | None) -> ForwardOptions:
        """The same with another source of masks."""
        return dataclasses.replace(self, dropout=dropout)

    def with_native_layers(self, wanted: bool = True) -> ForwardOptions:
        """The same with native layers, where they are wanted and exist for the policy."""
        native_layers = wanted and has_native_form(self.policy)
        return dataclasses.replace(self, native_layers=native_layers)


def has_native_form(policy: PrecisionPolicy) -> bool:
    """Whether there are native operations for a policy's types.

    Its products are float32 or bfloat16, both classes alike, and all else is float32.
    """
    products = {policy.attention, policy.dense}
    others = {policy.softmax, policy.layer_norm, policy.activations}
    return len(products) == 1 and products < {tf.float32, tf.bfloat16} and others == {tf.float32}
