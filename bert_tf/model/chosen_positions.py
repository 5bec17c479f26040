"""The network's output at a few chosen positions, for predictions that read no others.

A position of the last layer depends on the keys and values of all positions, but only on its own
query. The rest of that layer, five sixths of its products, is computed only where it is read:
native layers do that whenever they know where, and the plain form is here.

Dimensions: B sequences, S positions, P chosen positions, N heads, H width of a head, D = N * H.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output
from bert_tf.model.blocks import DropoutSite, PlainBlocks
from bert_tf.model.config import BertConfig
from bert_tf.model.encoder import close_layer, padding_bias
from bert_tf.model.options import ForwardOptions
from bert_tf.model.token_rows import mask_of_positions
from bert_tf.model.variables import Variables

_NO_DROPOUT = DropoutSite(None, 0, 0.0)


def output_at_positions(
    variables: Variables,
    config: BertConfig,
    features: Mapping[str, tf.Tensor],
    positions: tf.Tensor,
    options: ForwardOptions,
) -> tf.Tensor:
    """The last layer's output at the chosen positions, [B, P, D] float32, without dropout.

    Equal to ``bert_output(...).sequence_output`` there, up to rounding.

    Args:
      variables, config, features: as for ``bert.bert_output``.
      positions: [B, P] integers in [0, S).
      options: how to compute the forward pass.
    """
    options = options.with_dropout(None)
    last = config.num_hidden_layers - 1
    if last == 0 or options.native_layers:  # networks have at least one layer
        read = mask_of_positions(features["input_mask"], positions)
        outputs = bert_output(variables, config, features, options, read=read).sequence_output
        return tf.gather(outputs, positions, batch_dims=1)
    below = dataclasses.replace(config, num_hidden_layers=last)
    inputs = bert_output(variables, below, features, options).sequence_output
    with variables.scope(f"bert/encoder/layer_{last}") as layer:
        return _layer_at_positions(
            inputs, features["input_mask"], positions, layer, config=config, options=options
        )


def _layer_at_positions(
    x: tf.Tensor,
    input_mask: tf.Tensor,
    positions: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    options: ForwardOptions,
) -> tf.Tensor:
    """One encoder layer, [B, S, D] -> [B, P, D]; ``encoder.py`` has the complete layer."""
    heads = config.num_attention_heads
    blocks = PlainBlocks(options.policy)
    with variables.scope("attention/self") as scoped:
        query, key, value = blocks.project_heads(blocks.stream(x), scoped, heads=heads)
        by_head = tf.tile(positions[:, tf.newaxis], [1, heads, 1])
        scores = tf.matmul(tf.gather(query, by_head, batch_dims=2), key, transpose_b=True)
        probabilities = blocks.attention_probabilities(
            scores, padding_bias(input_mask), site=_NO_DROPOUT
        )
        context = blocks.merge_heads(tf.matmul(probabilities, value))
    residual = blocks.stream(tf.gather(x, positions, batch_dims=1))
    stream = close_layer(
        context,
        residual,
        variables,
        config=config,
        policy=options.policy,
        blocks=blocks,
        sites=lambda _: _NO_DROPOUT,
    )
    return blocks.output(stream)
