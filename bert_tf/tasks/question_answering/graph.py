"""BERT with a span head, which locates the answer to a question in a context.

Devlin et al. 2019, section 4.2. Dimensions: B sequences, S positions, D = hidden_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import Head, project_to_classes
from bert_tf.model.layers import shape_of
from bert_tf.model.losses import classification_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums
from bert_tf.model.variables import Variables, VariableSpec

SQUAD_SCOPE = "cls/squad"
SPAN_HEAD = Head("span head", (SQUAD_SCOPE,), "run_squad.py")

# Added to the logits of padding: exp(-10000) is 0 in float32.
_PADDING_BIAS = -10000.0


class SpanLogits(NamedTuple):
    """Logits of each position as first and as last of the answer, [B, S] float32 each."""

    start: tf.Tensor
    end: tf.Tensor


def squad_specs(config: BertConfig) -> list[VariableSpec]:
    """The variables of the network, under google-research/bert's names; there is no pooler."""
    return [
        *bert_specs(config, pooler=False),
        VariableSpec(f"{SQUAD_SCOPE}/output_weights", (2, config.hidden_size)),
        VariableSpec(f"{SQUAD_SCOPE}/output_bias", (2,), 0.0),
    ]


def span_head(
    sequence_output: tf.Tensor, variables: Variables, options: ForwardOptions
) -> SpanLogits:
    """Applies the head to the encoder's output, [B, S, D] float32."""
    B, S, D = shape_of(sequence_output)
    with variables.scope(SQUAD_SCOPE) as head:
        rows = tf.reshape(sequence_output, [B * S, D])
        logits = project_to_classes(
            rows, head["output_weights"], head["output_bias"], policy=options.policy
        )
        start, end = tf.unstack(tf.reshape(logits, [B, S, 2]), axis=-1)
    return SpanLogits(start, end)


def span_sums(
    logits: SpanLogits, features: Mapping[str, tf.Tensor], options: ForwardOptions
) -> Sums:
    """The loss and accuracy of a batch.

    The loss of an example is the mean of the cross entropies of its two positions, as in
    google-research/bert, but only over positions with a token, so that padding has no effect. Each
    of the two positions counts half in loss and accuracy.

    Args:
      logits: [B, S] each.
      features: ``input_mask`` [B, S]; ``start_positions`` and ``end_positions`` [B, 1] or [B].
      options: the policy's ``loss`` is the data type of the cross entropy.
    """
    # Two targets per example, each with half the weight.
    scores = position_scores(logits, features)
    labels = tf.concat([features["start_positions"], features["end_positions"]], axis=0)
    labels = tf.reshape(labels, [-1])
    weights = tf.fill(tf.shape(labels), 0.5)
    return classification_sums(scores, labels, weights, policy=options.policy)


def position_scores(logits: SpanLogits, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """[2 * B, S] float32: logits of all first positions, then of all last ones.

    The logits of padding are so low that a softmax ignores them.
    """
    mask = tf.cast(tf.tile(features["input_mask"], [2, 1]), tf.float32)
    return tf.concat(logits, axis=0) + (1.0 - mask) * _PADDING_BIAS
