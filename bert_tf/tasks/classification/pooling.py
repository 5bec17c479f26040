"""How a classification head pools the encoder's output: one vector per sequence.

Dimensions: B sequences, S positions, D the width of the network.
"""

from __future__ import annotations

from typing import Protocol

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import pooled_output
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.token_rows import mask_of_positions
from bert_tf.model.variables import Variables, VariableSpec, dense_specs


class Pooling(Protocol):
    """Pools the encoder's output into one vector per sequence; holds no tensors.

    Attributes:
      scope: scope of its variables, which checkpoints without a classification head may lack.
    """

    scope: str

    def specs(self, config: BertConfig) -> list[VariableSpec]:
        """Its variables, all under ``scope``."""

    def positions_read(self, mask: tf.Tensor) -> tf.Tensor:
        """The positions to read, [B, S] integers, from the mask of tokens [B, S].

        At other positions the encoder's output is undefined.
        """

    def pool(
        self,
        sequence_output: tf.Tensor,
        mask: tf.Tensor,
        variables: Variables,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """Pools [B, S, D] float32 to [B, D]; ``variables`` are the network's, from the root."""


class ClsPooling:
    """BERT's pooler (Devlin et al. 2019): a dense layer with tanh at [CLS]."""

    scope = "bert/pooler"

    def specs(self, config: BertConfig) -> list[VariableSpec]:
        """The variables of the dense layer."""
        width = config.hidden_size
        return dense_specs(f"{self.scope}/dense", inputs=width, outputs=width)

    def positions_read(self, mask: tf.Tensor) -> tf.Tensor:
        """The position of [CLS]."""
        return mask_of_positions(mask, tf.zeros_like(mask[:, :1]))

    def pool(
        self,
        sequence_output: tf.Tensor,
        mask: tf.Tensor,
        variables: Variables,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """The pooled output."""
        del mask
        return pooled_output(sequence_output, variables, policy=options.policy)


CLS = ClsPooling()
