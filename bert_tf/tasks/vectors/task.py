"""The graph of vectors: chosen layers' outputs, of every token or pooled over a text.

Dimensions: B sequences, S positions, L chosen layers, D = hidden_size, T tokens of a batch.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.sentence_modules import DenseLayer
from bert_tf.model.bert import bert_output, bert_specs, output_at_positions
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import Head
from bert_tf.model.layers import activate
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.task import Features, PredictingTask
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.tasks.vectors.settings import (
    CLS,
    LAST_TOKEN,
    MAX,
    MEAN_SQRT_LEN,
    TOKENS,
    VECTORS,
    WEIGHTED_MEAN,
)

# The square of the least norm that vectors are divided by, and the least sum of weights.
_LEAST_SQUARE, _LEAST_WEIGHT = 1e-24, 1e-9


@dataclasses.dataclass(frozen=True)
class VectorTask(PredictingTask):
    """Vectors of tokens or texts; a network without heads, which is not trained.

    Features are ``input_ids``, ``input_mask`` and ``segment_ids`` [B, S] integers.

    Attributes:
      layers: the chosen layers, counted from 0 or, below 0, from the last.
      pooling: some of ``settings.POOLINGS``, whose vectors follow each other.
      normalize: whether vectors are scaled to unit length.
      dense: layers on pooled vectors.
      not_pooled: the number of first tokens that are not pooled, since they are a prompt's.
    """

    config: BertConfig
    layers: tuple[int, ...]
    pooling: tuple[str, ...]
    normalize: bool
    dense: tuple[DenseLayer, ...] = ()
    not_pooled: int = 0

    heads: ClassVar[tuple[Head, ...]] = ()
    inputs: ClassVar = ("input_ids", "input_mask", "segment_ids")

    @property
    def is_pooled(self) -> bool:
        """Whether a text gets one vector, rather than each of its tokens."""
        return self.pooling != (TOKENS,)

    @property
    def width(self) -> int:
        """The number of components of a vector."""
        if self.dense:
            return self.dense[-1].kernel.shape[1]
        return len(self.pooling) * self.config.hidden_size

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler."""
        return bert_specs(self.config, pooler=False)

    def outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> tf.Tensor:
        """The vectors, float32: [T, L, D] for tokens, which follow each other, else [B, L, W].

        W is D for each pooling, or what the last dense layer makes of them.
        """
        layers = [layer % self.config.num_hidden_layers for layer in self.layers]
        below = dataclasses.replace(self.config, num_hidden_layers=max(layers) + 1)
        if self.pooling == (CLS,) and len(set(layers)) == 1:
            first = tf.zeros_like(features["input_ids"][:, :1])
            cls = output_at_positions(variables, below, features, first, options)
            vectors = tf.tile(cls, [1, len(self.layers), 1])
        else:
            outputs = bert_output(variables, below, features, options).layer_outputs
            pooled = [self._pooled(outputs[layer], features) for layer in layers]
            vectors = tf.stack(pooled, axis=1)
        for layer in self.dense:
            multiplied = tf.matmul(vectors, layer.kernel) + layer.bias
            vectors = activate(multiplied, layer.activation, policy=PrecisionPolicy())
        if self.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1, epsilon=_LEAST_SQUARE)
        return vectors

    def _pooled(self, hidden: tf.Tensor, features: Features) -> tf.Tensor:
        """[B, S, D] -> [T, D] for tokens, else [B, D] for each pooling; padding counts nowhere."""
        is_token = tf.cast(features["input_mask"], tf.bool)
        if not self.is_pooled:
            return tf.boolean_mask(hidden, is_token)
        places = tf.range(tf.shape(is_token)[1])
        is_token = tf.logical_and(is_token, places >= self.not_pooled)
        return tf.concat([_pool(name, hidden, is_token) for name in self.pooling], axis=-1)

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``vectors``, the outputs."""
        del features, options
        return {VECTORS: outputs}


def _pool(name: str, hidden: tf.Tensor, is_token: tf.Tensor) -> tf.Tensor:
    """[B, S, D] -> [B, D], as in sentence-transformers."""
    if name == CLS:
        return hidden[:, 0]
    if name == MAX:
        tokens = tf.where_v2(is_token[:, :, tf.newaxis], hidden, -tf.float32.max)
        return tf.reduce_max(tokens, axis=1)
    weights = tf.cast(is_token, tf.float32)
    if name == WEIGHTED_MEAN:
        weights *= tf.range(1.0, tf.cast(tf.shape(weights)[1], tf.float32) + 1.0)
    if name == LAST_TOKEN:
        weights = tf.nn.relu(weights - tf.pad(weights[:, 1:], [[0, 0], [0, 1]]))
    else:
        total = tf.maximum(tf.reduce_sum(weights, axis=1, keepdims=True), _LEAST_WEIGHT)
        weights /= tf.sqrt(total) if name == MEAN_SQRT_LEN else total
    return tf.matmul(weights[:, tf.newaxis], hidden)[:, 0]
