"""BERT with a span head: where in a context the answer to a question begins and ends.

Devlin et al. 2019, section 4.2. Dimensions: B sequences, S positions, D = hidden_size, K
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.bert import bert_output, bert_specs
from bert_tf.model.dropout import Dropout
from bert_tf.model.heads import Head, project_to_classes
from bert_tf.model.losses import ClassificationSums, classification_sums
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.shapes import shape_of
from bert_tf.model.variables import Variables, VariableSpec

SQUAD_SCOPE = "cls/squad"
SPAN_HEAD = Head("span head", SQUAD_SCOPE)

# Added to scores of padding: exp(-10000) is 0 in float32.
_PADDING_BIAS = -10000.0


class SpanLogits(NamedTuple):
    """Scores of each position as the first and as the last of the answer, [B, S] float32."""

    start: tf.Tensor
    end: tf.Tensor


class SpanCandidates(NamedTuple):
    """The best positions of the context, best first; of equal ones the first.

    Attributes:
      start_indices, end_indices: [B, K] int32 positions in the sequence.
      start_logits, end_logits: [B, K] float32, -inf at places that no position is left for.
      null_logits: [B] float32, start and end score of [CLS], which stands for "no answer".
    """

    start_indices: tf.Tensor
    start_logits: tf.Tensor
    end_indices: tf.Tensor
    end_logits: tf.Tensor
    null_logits: tf.Tensor


def squad_specs(config: BertConfig) -> list[VariableSpec]:
    """The variables of the network, under google-research/bert's names; there is no pooler."""
    return [
        *bert_specs(config, pooler=False),
        VariableSpec(f"{SQUAD_SCOPE}/output_weights", (2, config.hidden_size)),
        VariableSpec(f"{SQUAD_SCOPE}/output_bias", (2,), "zeros"),
    ]


def span_logits(
    variables: Variables,
    config: BertConfig,
    features: Mapping[str, tf.Tensor],
    *,
    policy: PrecisionPolicy,
    dropout: Dropout | None = None,
    recompute: bool = False,
    skip_padding: bool = False,
) -> SpanLogits:
    """The forward pass.

    Args:
      variables: those of ``squad_specs``.
      config: the network's.
      features: ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] integers.
      policy: precision of each class of operation.
      dropout: source of masks; None outside training.
      recompute, skip_padding: as in :func:`bert_tf.model.encoder.encode`.
    """
    sequence_output = bert_output(
        variables,
        config,
        features,
        policy=policy,
        dropout=dropout,
        recompute=recompute,
        skip_padding=skip_padding,
    ).sequence_output
    B, S, D = shape_of(sequence_output)
    with variables.scope(SQUAD_SCOPE) as own:
        rows = tf.reshape(sequence_output, [B * S, D])
        logits = project_to_classes(rows, own["output_weights"], own["output_bias"], policy=policy)
        start, end = tf.unstack(tf.reshape(logits, [B, S, 2]), axis=-1)
    return SpanLogits(start, end)


def span_sums(
    logits: SpanLogits, features: Mapping[str, tf.Tensor], *, policy: PrecisionPolicy
) -> ClassificationSums:
    """Loss and accuracy of a batch.

    An example's loss is the mean of the cross entropies of its two positions, as in
    google-research/bert, but over the positions that hold a token: what padding there is changes
    nothing. An example is correct when both positions are the best ones.

    Args:
      logits: [B, S] each.
      features: ``input_mask`` [B, S]; ``start_positions`` and ``end_positions`` [B, 1] or [B].
      policy: its ``loss`` is the type of the cross entropy.
    """
    # Two decisions an example, each of half the weight.
    scores = _at_tokens(tf.concat(logits, axis=0), tf.tile(features["input_mask"], [2, 1]))
    labels = tf.concat([features["start_positions"], features["end_positions"]], axis=0)
    labels = tf.reshape(labels, [-1])
    weights = tf.fill(tf.shape(labels), 0.5)
    return classification_sums(scores, labels, weights, policy=policy)


def span_candidates(
    logits: SpanLogits, features: Mapping[str, tf.Tensor], *, k: int
) -> SpanCandidates:
    """The K best first and last positions of each context.

    Args:
      logits: [B, S] each.
      features: ``input_mask``, ``segment_ids`` [B, S]; the context is the second segment without
        its [SEP], which is the last token.
      k: K, at least 1.
    """
    mask = features["input_mask"]
    _, S = shape_of(mask)
    last = tf.reduce_sum(mask, axis=-1, keepdims=True) - 1
    is_before_last = tf.cast(tf.range(S)[tf.newaxis] < last, mask.dtype)
    in_context = mask * features["segment_ids"] * is_before_last
    found = [_best(scores, in_context, k) for scores in logits]
    (start_logits, start_indices), (end_logits, end_indices) = found
    null_logits = logits.start[:, 0] + logits.end[:, 0]
    return SpanCandidates(start_indices, start_logits, end_indices, end_logits, null_logits)


def _best(scores: tf.Tensor, allowed: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """[B, S] -> values and indices of the k highest allowed scores, [B, k]."""
    scores = tf.where(tf.cast(allowed, tf.bool), scores, tf.fill(tf.shape(scores), -math.inf))
    # A sequence may have fewer positions than candidates are asked for.
    scores = tf.pad(scores, [[0, 0], [0, k]], constant_values=-math.inf)
    values, indices = tf.math.top_k(scores, k=k)
    return values, indices


def _at_tokens(scores: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
    """[B, S] scores with those of padding so low that they have no part in a softmax."""
    return scores + (1.0 - tf.cast(input_mask, tf.float32)) * _PADDING_BIAS
