"""The Transformer encoder (Vaswani et al. 2017, section 3) in BERT's form.

Dimensions: B sequences, S positions, N heads, H width of a head, N * H = hidden_size.
"""

from __future__ import annotations

import functools
import math

import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.dropout import Dropout, apply_dropout
from bert_tf.model.layers import activate, computed_in, dense, layer_norm
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.shapes import shape_of
from bert_tf.model.variables import Variables, VariableSpec, dense_specs, layer_norm_specs

# Added to the scores of padding: exp(-10000) is 0 in float32, and float16 can hold the number.
_PADDING_BIAS = -10000.0

# Call sites of dropout: 0 is the embeddings, then these three for each layer.
_SITES_PER_LAYER = 3
_ATTENTION_PROBABILITIES, _ATTENTION_OUTPUT, _OUTPUT = range(_SITES_PER_LAYER)


def encoder_specs(config: BertConfig, *, scope: str) -> list[VariableSpec]:
    """The variables of all layers, under ``scope``/layer_0 and so on."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    specs = []
    for layer in range(config.num_hidden_layers):
        name = f"{scope}/layer_{layer}"
        for projection in ("query", "key", "value"):
            specs += dense_specs(
                f"{name}/attention/self/{projection}", inputs=hidden, outputs=hidden
            )
        specs += dense_specs(f"{name}/attention/output/dense", inputs=hidden, outputs=hidden)
        specs += layer_norm_specs(f"{name}/attention/output/LayerNorm", width=hidden)
        specs += dense_specs(f"{name}/intermediate/dense", inputs=hidden, outputs=intermediate)
        specs += dense_specs(f"{name}/output/dense", inputs=intermediate, outputs=hidden)
        specs += layer_norm_specs(f"{name}/output/LayerNorm", width=hidden)
    return specs


def encode(
    x: tf.Tensor,
    input_mask: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
    dropout: Dropout | None,
) -> list[tf.Tensor]:
    """Runs all layers.

    Args:
      x: [B, S, N * H] float32, the embeddings.
      input_mask: [B, S] integers, 1 for a token and 0 for padding.
      variables: narrowed to the scope of the encoder.
      config: sizes and rates.
      policy: precision of each class of operation.
      dropout: None outside training.

    Returns:
      The output of each layer, [B, S, N * H] float32.
    """
    padding = 1.0 - tf.cast(input_mask, tf.float32)
    score_bias = padding[:, tf.newaxis, tf.newaxis, :] * _PADDING_BIAS  # [B, 1, 1, S]
    outputs = []
    for index in range(config.num_hidden_layers):
        with variables.scope(f"layer_{index}") as own:
            x = _encoder_layer(
                x,
                score_bias,
                own,
                config=config,
                policy=policy,
                dropout=dropout,
                first_site=1 + _SITES_PER_LAYER * index,
            )
        outputs.append(x)
    return outputs


def _encoder_layer(
    x: tf.Tensor,
    score_bias: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
    dropout: Dropout | None,
    first_site: int,
) -> tf.Tensor:
    """[B, S, N * H] -> [B, S, N * H]: self-attention and feed-forward, each with a residual."""
    close_residual = functools.partial(
        _close_residual, rate=config.hidden_dropout_prob, policy=policy, dropout=dropout
    )
    with variables.scope("attention/self") as own:
        context = _self_attention(
            x,
            score_bias,
            own,
            config=config,
            policy=policy,
            dropout=dropout,
            site=first_site + _ATTENTION_PROBABILITIES,
        )
    with variables.scope("attention/output") as own:
        attended = close_residual(context, x, own, site=first_site + _ATTENTION_OUTPUT)
    with variables.scope("intermediate") as own:
        widened = dense(attended, own, "dense", policy=policy)
        widened = activate(widened, config.hidden_act, policy=policy)
    with variables.scope("output") as own:
        return close_residual(widened, attended, own, site=first_site + _OUTPUT)


def _self_attention(
    x: tf.Tensor,
    score_bias: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
    dropout: Dropout | None,
    site: int,
) -> tf.Tensor:
    """[B, S, N * H] -> [B, S, N * H]: each position's mixture of all positions' values."""

    def split_heads(projected: tf.Tensor) -> tf.Tensor:
        # Cast first: the transposition then moves half the bytes.
        return _split_heads(tf.cast(projected, policy.attention), config.num_attention_heads)

    query, key, value = (
        dense(x, variables, name, policy=policy) for name in ("query", "key", "value")
    )
    # The query is scaled, not the scores: in float16 the scores themselves might overflow.
    query *= 1.0 / math.sqrt(config.size_per_head)
    scores = computed_in(
        policy.attention,
        functools.partial(tf.matmul, transpose_b=True),
        split_heads(query),
        split_heads(key),
    )  # [B, N, S, S]
    probabilities = computed_in(policy.softmax, _biased_softmax, scores, score_bias)
    probabilities = apply_dropout(
        dropout, probabilities, config.attention_probs_dropout_prob, site=site
    )
    return computed_in(
        policy.attention,
        lambda weights, heads: _merge_heads(tf.matmul(weights, heads)),
        probabilities,
        split_heads(value),
    )


def _close_residual(
    branch: tf.Tensor,
    x: tf.Tensor,
    variables: Variables,
    *,
    rate: float,
    policy: PrecisionPolicy,
    dropout: Dropout | None,
    site: int,
) -> tf.Tensor:
    """Projects a branch back to the hidden size, adds its input ``x`` and normalises the sum."""
    projected = dense(branch, variables, "dense", policy=policy)
    projected = apply_dropout(dropout, projected, rate, site=site)
    return layer_norm(projected + x, variables, "LayerNorm", policy=policy)


def _biased_softmax(scores: tf.Tensor, score_bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(scores + score_bias)


def _split_heads(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """[B, S, N * H] -> [B, N, S, H]."""
    B, S, width = shape_of(x)
    return tf.transpose(tf.reshape(x, [B, S, num_heads, width // num_heads]), [0, 2, 1, 3])


def _merge_heads(x: tf.Tensor) -> tf.Tensor:
    """[B, N, S, H] -> [B, S, N * H]."""
    B, N, S, H = shape_of(x)
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [B, S, N * H])
