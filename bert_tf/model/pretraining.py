"""BERT with its pre-training heads, each of which can be left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.bert import bert_output, bert_specs, pooled_output
from bert_tf.model.dropout import Dropout
from bert_tf.model.heads import (
    masked_lm_scores,
    masked_lm_specs,
    next_sentence_logits,
    next_sentence_specs,
)
from bert_tf.model.losses import ClassificationSums, classification_sums, score_sums
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import Variables, VariableSpec


class PretrainingOutput(NamedTuple):
    """Logits and sums of the heads; both None for a head that is left out.

    Attributes:
      masked_lm_logits: [B * P, V] float32.
      masked_lm: sums over the masked positions.
      next_sentence_logits: [B, 2] float32.
      next_sentence: sums over the sequences.
    """

    masked_lm_logits: tf.Tensor | None
    masked_lm: ClassificationSums | None
    next_sentence_logits: tf.Tensor | None
    next_sentence: ClassificationSums | None


def pretraining_specs(
    config: BertConfig, *, masked_lm: bool = True, next_sentence: bool = True
) -> list[VariableSpec]:
    """Every variable of the network, none that the chosen heads would leave untrained."""
    specs = bert_specs(config, pooler=next_sentence)
    if masked_lm:
        specs += masked_lm_specs(config)
    if next_sentence:
        specs += next_sentence_specs(config)
    return specs


def pretraining_output(
    variables: Variables,
    config: BertConfig,
    features: Mapping[str, tf.Tensor],
    *,
    policy: PrecisionPolicy,
    dropout: Dropout | None = None,
    recompute: bool = False,
    masked_lm: bool = True,
    next_sentence: bool = True,
) -> PretrainingOutput:
    """Builds the forward pass of one micro batch.

    Args:
      variables: those of ``pretraining_specs`` with the same heads.
      config: the network's.
      features: ``input_ids``, ``input_mask``, ``segment_ids`` [B, S]; for the masked LM
        ``masked_lm_positions``, ``masked_lm_ids`` [B, P] integers and ``masked_lm_weights``
        [B, P] float32; for the next sentence ``next_sentence_labels`` [B, 1] or [B]. An optional
        ``example_weights`` [B] float32 takes sequences out of the next-sentence sums.
      policy: precision of each class of operation.
      dropout: source of masks; None outside training.
      recompute: as in :func:`bert_tf.model.encoder.encode`.
      masked_lm: whether to build this head.
      next_sentence: whether to build this head.
    """
    sequence_output = bert_output(
        variables, config, features, policy=policy, dropout=dropout, recompute=recompute
    ).sequence_output
    word_logits = word_sums = sentence_logits = sentence_sums = None
    if masked_lm:
        word_scores = masked_lm_scores(
            sequence_output,
            features["masked_lm_positions"],
            variables,
            config=config,
            policy=policy,
        )
        with tf.name_scope("cls/predictions"):
            word_logits = word_scores.logits(policy)
        with tf.name_scope("cls/predictions/loss"):
            word_sums = score_sums(
                word_scores,
                tf.reshape(features["masked_lm_ids"], [-1]),
                tf.reshape(features["masked_lm_weights"], [-1]),
                policy=policy,
            )
    if next_sentence:
        pooled = pooled_output(sequence_output, variables, policy=policy)
        sentence_logits = next_sentence_logits(pooled, variables, policy=policy)
        labels = tf.reshape(features["next_sentence_labels"], [-1])
        weights = features.get("example_weights", tf.ones_like(labels, tf.float32))
        with tf.name_scope("cls/seq_relationship/loss"):
            sentence_sums = classification_sums(sentence_logits, labels, weights, policy=policy)
    return PretrainingOutput(word_logits, word_sums, sentence_logits, sentence_sums)
