"""The Transformer encoder (Vaswani et al. 2017, section 3) in BERT's form.

Dimensions: B sequences, S positions, N heads, H width of a head, N * H = hidden_size.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import DropoutSite, PlainBlocks, Stream, blocks_for, product
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import Variables, VariableSpec, dense_specs, layer_norm_specs

# Added to the scores of padding: exp(-10000) is 0 in float32, and float16 can represent -10000.
_PADDING_BIAS = -10000.0

# Call sites of dropout: 0 for the embeddings, then three per layer.
_SITES_PER_LAYER = 3
_ATTENTION_PROBABILITIES, _ATTENTION_OUTPUT, _OUTPUT = range(_SITES_PER_LAYER)


class LayerOutput(NamedTuple):
    """Outputs of an encoder layer.

    Attributes:
      hidden: [B, S, N * H] float32.
      attention_scores: [B, N, S, S] in attention's dtype, before padding is masked and before the
        softmax; None if the layer is recomputed, which keeps only its input.
    """

    hidden: tf.Tensor
    attention_scores: tf.Tensor | None


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
    config: BertConfig,
    options: ForwardOptions,
    *,
    read: tf.Tensor | None = None,
) -> list[LayerOutput]:
    """Runs all layers.

    Args:
      x: [B, S, N * H] float32, the embeddings.
      input_mask: [B, S] integers, 1 for a token and 0 for padding.
      variables: narrowed to the encoder's scope.
      config: sizes and dropout rates.
      options: how to compute the layers.
      read: [B, S] integers, 0 where nothing reads the last layer's output; None if all of it is
        read. Native layers may return zeros there: three quarters of the last layer's products
        follow its attention and are needed only where the output is read.

    Returns:
      The outputs of each layer.
    """
    score_bias = padding_bias(input_mask)
    policy, dropout = options.policy, options.dropout
    blocks = blocks_for(options, input_mask)
    stream = blocks.stream(x)
    layer = functools.partial(_encoder_layer, config=config, policy=policy, blocks=blocks)
    if options.recompute and dropout is not None:
        layer = functools.partial(
            _recomputed_layer, layer, dropout, blocks=blocks, compiled=options.compiled
        )
    closings = [blocks] * config.num_hidden_layers
    if read is not None and not options.recompute:
        closings[-1] = blocks.narrowed(read)
    outputs = []
    for index, closing in enumerate(closings):
        sites = _Sites(config, dropout, first=1 + _SITES_PER_LAYER * index)
        with variables.scope(f"layer_{index}") as scoped:
            stream, scores = layer(stream, score_bias, scoped, closing=closing, sites=sites)
        outputs.append(LayerOutput(closing.output(stream), scores))
    return outputs


def padding_bias(input_mask: tf.Tensor) -> tf.Tensor:
    """The bias added to the attention scores of each key: [B, S] float32, 0 for tokens."""
    return (1.0 - tf.cast(input_mask, tf.float32)) * _PADDING_BIAS


@dataclasses.dataclass(frozen=True)
class _Sites:
    """The dropout call sites of one layer; ``first`` is the number of the first one."""

    config: BertConfig
    dropout: Dropout | None
    first: int

    def __call__(self, site: int) -> DropoutSite:
        config = self.config
        is_attention = site == _ATTENTION_PROBABILITIES
        rate = config.attention_probs_dropout_prob if is_attention else config.hidden_dropout_prob
        return DropoutSite(self.dropout, self.first + site, rate)


def _encoder_layer(
    x: Stream,
    score_bias: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
    blocks: PlainBlocks,
    closing: PlainBlocks,
    sites: _Sites,
) -> tuple[Stream, tf.Tensor | None]:
    """Self-attention and feed-forward, each with a residual; also returns attention scores.

    ``closing`` are the blocks for everything after the attention, and for the returned stream.
    """
    with variables.scope("attention/self") as scoped:
        context, scores = blocks.attend(
            x,
            score_bias,
            scoped,
            heads=config.num_attention_heads,
            closing=closing,
            site=sites(_ATTENTION_PROBABILITIES),
        )
    stream = close_layer(
        context,
        blocks.handed_to(closing, x),
        variables,
        config=config,
        policy=policy,
        blocks=closing,
        sites=sites,
    )
    return stream, scores


def close_layer(
    context: tf.Tensor,
    x: Stream,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
    blocks: PlainBlocks,
    sites: Callable[[int], DropoutSite],
) -> Stream:
    """The part of a layer after attention, in which positions are independent of each other.

    ``context`` holds the merged heads at the positions of the layer's input ``x``; ``sites`` maps a
    number within the layer to its dropout call site.
    """
    multiply = functools.partial(product, policy=policy)
    with variables.scope("attention/output") as scoped:
        attended = blocks.close_residual(
            multiply(context, scoped["dense/kernel"]), x, scoped, site=sites(_ATTENTION_OUTPUT)
        )
    with variables.scope("intermediate/dense") as scoped:
        widened = multiply(attended.operand, scoped["kernel"])
        widened = blocks.activated(widened, scoped, config.hidden_act)
    with variables.scope("output") as scoped:
        return blocks.close_residual(
            multiply(widened, scoped["dense/kernel"]), attended, scoped, site=sites(_OUTPUT)
        )


def _recomputed_layer(
    layer: Callable[..., tuple[Stream, tf.Tensor | None]],
    dropout: Dropout,
    x: Stream,
    score_bias: tf.Tensor,
    variables: Variables,
    *,
    blocks: PlainBlocks,
    closing: PlainBlocks,
    sites: _Sites,
    compiled: bool,
) -> tuple[Stream, None]:
    """Recomputes ``layer`` in the backward pass; keeps only ``full`` of its in- and output."""
    weights = variables.within()

    def output(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        full, bias, position, first_example, *values = tensors
        placed = dataclasses.replace(sites, dropout=dropout.at(position, first_example))
        scoped = Variables(dict(zip(weights, values)))
        stream, _ = layer(blocks.rebuilt(full), bias, scoped, closing=closing, sites=placed)
        return stream.full

    inputs = [x.full, score_bias, *dropout.place, *weights.values()]
    from bert_tf.model.recompute import recomputed

    return blocks.rebuilt(recomputed(output, inputs, compiled=compiled)), None
