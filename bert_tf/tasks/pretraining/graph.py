"""BERT with its pre-training heads, each of them optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs, pooled_output
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import (
    masked_lm_scores,
    masked_lm_specs,
    next_sentence_logits,
    next_sentence_specs,
)
from bert_tf.model.losses import ClassScores, classification_sums, score_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums
from bert_tf.model.variables import Variables, VariableSpec


class PretrainingOutputs(NamedTuple):
    """The outputs of the heads; None for a head that is not used.

    Attributes:
      masked_lm: vocabulary logits at the masked positions, [B * P, V].
      next_sentence: [B, 2] float32 logits.
    """

    masked_lm: ClassScores | None
    next_sentence: tf.Tensor | None

    @property
    def words(self) -> ClassScores:
        """``masked_lm``; raises ValueError if that head is left out."""
        if self.masked_lm is None:
            raise ValueError("the network has no head for masked words")
        return self.masked_lm


def pretraining_specs(
    config: BertConfig, *, masked_lm: bool = True, next_sentence: bool = True
) -> list[VariableSpec]:
    """The variables of the network, except those that the chosen heads would not train."""
    specs = bert_specs(config, pooler=next_sentence)
    if masked_lm:
        specs += masked_lm_specs(config)
    if next_sentence:
        specs += next_sentence_specs(config)
    return specs


def pretraining_heads(
    sequence_output: tf.Tensor,
    positions: tf.Tensor | None,
    variables: Variables,
    config: BertConfig,
    options: ForwardOptions,
    *,
    next_sentence: bool,
) -> PretrainingOutputs:
    """Applies the heads to the encoder's output, [B, S, D] float32.

    ``positions`` [B, P] integers are the positions to predict, None without the masked LM.
    """
    words = sentences = None
    if positions is not None:
        words = masked_lm_scores(
            sequence_output, positions, variables, config=config, policy=options.policy
        )
    if next_sentence:
        pooled = pooled_output(sequence_output, variables, policy=options.policy)
        sentences = next_sentence_logits(pooled, variables, policy=options.policy)
    return PretrainingOutputs(words, sentences)


def masked_lm_logits(outputs: PretrainingOutputs, options: ForwardOptions) -> tf.Tensor:
    """The vocabulary logits, [B * P, V] float32."""
    with tf.name_scope("cls/predictions"):
        return outputs.words.logits(options.policy)


def masked_lm_sums(
    outputs: PretrainingOutputs, features: Mapping[str, tf.Tensor], options: ForwardOptions
) -> Sums:
    """The sums over masked positions.

    ``features`` are ``masked_lm_ids`` [B, P] integers and ``masked_lm_weights`` [B, P] float32.
    """
    sums_of = score_sums
    if outputs.words.need_blocks(options):
        from bert_tf.model.row_blocks import score_sums_in_blocks as sums_of
    with tf.name_scope("cls/predictions/loss"):
        return sums_of(
            outputs.words,
            tf.reshape(features["masked_lm_ids"], [-1]),
            tf.reshape(features["masked_lm_weights"], [-1]),
            options=options,
        )


def next_sentence_sums(
    outputs: PretrainingOutputs, features: Mapping[str, tf.Tensor], options: ForwardOptions
) -> Sums:
    """The sums over sequences.

    ``features`` are ``next_sentence_labels`` [B, 1] or [B]; a weight of 0 in the optional
    ``example_weights`` [B] float32 excludes a sequence.
    """
    labels = tf.reshape(features["next_sentence_labels"], [-1])
    weights = features.get("example_weights", tf.ones_like(labels, tf.float32))
    with tf.name_scope("cls/seq_relationship/loss"):
        return classification_sums(outputs.next_sentence, labels, weights, policy=options.policy)
