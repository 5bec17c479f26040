"""BERT (Devlin et al. 2019): embeddings, encoder and pooler under Google's variable names.

Predictions that read few positions need the last layer's output at these alone. A position depends
on the keys and values of all positions, but only on its own query, so the rest of that layer, five
sixths of its products, is computed only where it is read.

Dimensions: B sequences, S positions, P chosen positions, N heads, H width of a head, D = N * H =
hidden_size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import DropoutSite, PlainBlocks
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import apply_dropout
from bert_tf.model.encoder import close_layer, encode, encoder_specs, padding_bias
from bert_tf.model.layers import (
    activate,
    computed_in,
    dense,
    layer_norm,
    operand,
    rows_of_sequences,
    shape_of,
)
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.token_rows import mask_of_positions
from bert_tf.model.variables import Variables, VariableSpec, dense_specs, layer_norm_specs

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

_EMBEDDING_DROPOUT_SITE = 0
_NO_DROPOUT = DropoutSite(None, 0, 0.0)


class BertOutput(NamedTuple):
    """Outputs of the network, float32 unless stated otherwise.

    Attributes:
      sequence_output: [B, S, D], the last layer's output.
      layer_outputs: [B, S, D] for each layer.
      embedding_output: [B, S, D], the first layer's input.
      attention_scores: [B, N, S, S] for each layer (``encoder.LayerOutput``).
    """

    sequence_output: tf.Tensor
    layer_outputs: list[tf.Tensor]
    embedding_output: tf.Tensor
    attention_scores: list[tf.Tensor | None]


def bert_specs(config: BertConfig, *, pooler: bool) -> list[VariableSpec]:
    """The variables of the network.

    The pooler is included only if a head reads the pooled output: otherwise it would keep its
    random initial values, and a checkpoint should not appear to contain a trained pooler. Segment
    embeddings are omitted if ``type_vocab_size`` is 0.
    """
    hidden = config.hidden_size
    scope = "bert/embeddings"
    specs = [VariableSpec(WORD_EMBEDDINGS, (config.vocab_size, hidden))]
    if config.type_vocab_size:
        specs.append(
            VariableSpec(f"{scope}/token_type_embeddings", (config.type_vocab_size, hidden))
        )
    specs += [
        VariableSpec(f"{scope}/position_embeddings", (config.max_position_embeddings, hidden)),
        *layer_norm_specs(f"{scope}/LayerNorm", width=hidden),
        *encoder_specs(config, scope="bert/encoder"),
    ]
    if pooler:
        specs += dense_specs("bert/pooler/dense", inputs=hidden, outputs=hidden)
    return specs


def bert_output(
    variables: Variables,
    config: BertConfig,
    features: Mapping[str, tf.Tensor],
    options: ForwardOptions,
    *,
    read: tf.Tensor | None = None,
) -> BertOutput:
    """Embeds and encodes a batch.

    Args:
      variables: the variables of ``bert_specs``, from the root.
      config: sizes, activation and dropout rates.
      features: integers [B, S], or [..., S] for B sequences in all: ``input_ids`` in [0,
        vocab_size); ``input_mask``, 1 for a token and 0 for padding; ``segment_ids`` in [0,
        type_vocab_size), ignored if that is 0.
      options: how to compute the forward pass.
      read: where the last layer's output is read, as in ``encoder.encode``.

    Raises:
      UserError: the sequences are longer than ``max_position_embeddings``.
    """
    with variables.scope("bert/embeddings") as scoped:
        embedded = _embed(
            rows_of_sequences(features["input_ids"]),
            rows_of_sequences(features["segment_ids"]),
            scoped,
            config=config,
            policy=options.policy,
        )
        embedded = apply_dropout(
            options.dropout, embedded, config.hidden_dropout_prob, site=_EMBEDDING_DROPOUT_SITE
        )
    with variables.scope("bert/encoder") as encoder:
        mask = rows_of_sequences(features["input_mask"])
        layers = encode(embedded, mask, encoder, config, options, read=read)
    hidden, scores = map(list, zip(*layers))
    return BertOutput(hidden[-1], hidden, embedded, scores)


def pooled_output(
    sequence_output: tf.Tensor, variables: Variables, *, policy: PrecisionPolicy
) -> tf.Tensor:
    """[B, S, D] -> [B, D]: a dense layer with tanh applied to the first position, [CLS]."""
    with variables.scope("bert/pooler") as pooler:
        pooled = dense(sequence_output[:, 0], pooler, "dense", policy=policy)
        return activate(pooled, "tanh", policy=policy)


def _embed(
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
) -> tf.Tensor:
    """The normalised sum of word, position and (if present) segment embeddings, [B, S, D]."""
    B, S = shape_of(input_ids)
    if isinstance(S, int):
        advice = "shorten them or use another bert_config"
        config.check_length(S, f"the sequences have {S} tokens,", advice=advice)
    # Gather from the value, not from the variable: TensorFlow copies a variable that is gathered
    # from if it is also read as a whole, as the masked-LM head does.
    parts = [tf.gather(operand(variables["word_embeddings"], tf.float32), input_ids)]
    if config.type_vocab_size:
        # The table has few rows, so the look-up is a small product, and so is its gradient.
        one_hot = tf.one_hot(tf.reshape(segment_ids, [-1]), config.type_vocab_size)
        segments = computed_in(
            policy.embeddings, tf.matmul, one_hot, variables["token_type_embeddings"]
        )
        parts.append(tf.reshape(segments, [B, S, config.hidden_size]))
    parts.append(variables["position_embeddings"][:S])
    total = computed_in(policy.embeddings, lambda *summands: sum(summands), *parts)
    return layer_norm(total, variables, "LayerNorm", policy=policy)


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
      variables, config, features: as for ``bert_output``.
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
