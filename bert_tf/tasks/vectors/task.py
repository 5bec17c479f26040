"""The graph of vectors: chosen layers' outputs, of every token or pooled over a text.

Dimensions: B sequences, S positions, L chosen layers, D = hidden_size, T tokens of a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output, bert_specs
from bert_tf.model.chosen_positions import output_at_positions
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import Head
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums, Terms
from bert_tf.model.task import Features
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.tasks.vectors.settings import CLS, MEAN, TOKENS, VECTORS

# The square of the least norm that vectors are divided by.
_LEAST_SQUARE = 1e-24


@dataclasses.dataclass(frozen=True)
class VectorTask:
    """Vectors of tokens or texts; a network without heads, which is not trained.

    Implements :class:`bert_tf.model.task.Task`. Features are ``input_ids``, ``input_mask`` and
    ``segment_ids`` [B, S] integers.

    Attributes:
      config: the network's sizes.
      layers: the chosen layers, counted from 0.
      pooling: one of ``settings.POOLINGS``.
      normalize: whether vectors are scaled to unit length.
    """

    config: BertConfig
    layers: tuple[int, ...]
    pooling: str
    normalize: bool

    heads: ClassVar[tuple[Head, ...]] = ()
    inputs: ClassVar = ("input_ids", "input_mask", "segment_ids")
    terms: ClassVar[Terms] = {}

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler."""
        return bert_specs(self.config, pooler=False)

    def outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> tf.Tensor:
        """The vectors, float32: [T, L, D] for tokens, which follow each other, else [B, L, D]."""
        below = dataclasses.replace(self.config, num_hidden_layers=max(self.layers) + 1)
        if self.pooling == CLS and len(set(self.layers)) == 1:
            first = tf.zeros_like(features["input_ids"][:, :1])
            cls = output_at_positions(variables, below, features, first, options)
            found = tf.tile(cls, [1, len(self.layers), 1])
        else:
            outputs = bert_output(variables, below, features, options).layer_outputs
            pooled = [self._pooled(outputs[layer], features) for layer in self.layers]
            found = tf.stack(pooled, axis=1)
        if self.normalize:
            found = tf.math.l2_normalize(found, axis=-1, epsilon=_LEAST_SQUARE)
        return found

    def _pooled(self, hidden: tf.Tensor, features: Features) -> tf.Tensor:
        """[B, S, D] -> [T, D] for tokens, else [B, D]; padding counts nowhere."""
        is_token = tf.cast(features["input_mask"], tf.bool)
        if self.pooling == TOKENS:
            return tf.boolean_mask(hidden, is_token)
        if self.pooling == CLS:
            return hidden[:, 0]
        if self.pooling == MEAN:
            mask = tf.cast(features["input_mask"], tf.float32)
            weights = mask / tf.reduce_sum(mask, axis=1, keepdims=True)
            return tf.matmul(weights[:, tf.newaxis], hidden)[:, 0]
        known = tf.where_v2(is_token[:, :, tf.newaxis], hidden, -tf.float32.max)
        return tf.reduce_max(known, axis=1)

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """Empty: there is no loss."""
        del features
        return {}

    def losses(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """Empty: there is no loss."""
        del outputs, features, options
        return {}

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``vectors``, the outputs."""
        del features, options
        return {VECTORS: outputs}

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Empty: nothing is scored."""
        del sums
        return {}
