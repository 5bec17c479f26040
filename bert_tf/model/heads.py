"""The pre-training heads (masked LM, next sentence, replaced tokens) and the classification head.

Dimensions: B sequences, S positions, P predictions per sequence, D = hidden_size, V = vocab_size.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import WORD_EMBEDDINGS
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import apply_dropout
from bert_tf.model.layers import activate, dense, layer_norm, shape_of
from bert_tf.model.losses import ClassScores
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import Variables, VariableSpec, dense_specs, layer_norm_specs


class Head(NamedTuple):
    """A part of a network that a checkpoint may lack and that is then trained from scratch.

    Attributes:
      name: for messages.
      scopes: scopes of its output variables; a checkpoint without any of these lacks the head.
      trained_by: the script that trains it.
      only_reader_of: a scope of variables that nothing else in the network reads.
      kinds: the kinds of classes (``model_directory.classes``) that its outputs may be, where
        several heads have the same variable names and only what is stored with a checkpoint tells
        which it is; among them None if it is this one where nothing tells.
      classes: the names of a text's classes, if a checkpoint that names others lacks the head.
    """

    name: str
    scopes: tuple[str, ...]
    trained_by: str
    only_reader_of: str | None = None
    kinds: tuple[str | None, ...] = ()
    classes: tuple[str, ...] | None = None


MASKED_LM_HEAD = Head("masked-LM head", ("cls/predictions",), "run_pretraining.py")
NEXT_SENTENCE_HEAD = Head(
    "next-sentence head", ("cls/seq_relationship",), "run_pretraining.py", "bert/pooler"
)
DISCRIMINATOR_HEAD = Head("discriminator head", ("cls/discriminator",), "run_electra.py")

# The names of google-research/bert's run_classifier.py and NVIDIA's run_ner.py, without a scope.
OUTPUT_WEIGHTS, OUTPUT_BIAS = "output_weights", "output_bias"
_CLASSES_SITE = (1 << 16) - 1  # dropout site, above those of all layers


def masked_lm_specs(config: BertConfig, *, embedding_size: int | None = None) -> list[VariableSpec]:
    """The variables of the head; its output weights are the word embeddings.

    ``embedding_size`` is the width of the word embeddings if it is not D.
    """
    hidden = config.hidden_size
    width = embedding_size or hidden
    return [
        VariableSpec("cls/predictions/output_bias", (config.vocab_size,), 0.0),
        *dense_specs("cls/predictions/transform/dense", inputs=hidden, outputs=width),
        *layer_norm_specs("cls/predictions/transform/LayerNorm", width=width),
    ]


def masked_lm_scores(
    sequence_output: tf.Tensor,
    positions: tf.Tensor,
    variables: Variables,
    *,
    config: BertConfig,
    policy: PrecisionPolicy,
) -> ClassScores:
    """Vocabulary logits, at the masked positions only.

    Args:
      sequence_output: [B, S, D] float32.
      positions: [B, P] integers in [0, S).
      variables: the network's variables, from the root.
      config: the network's configuration.
      policy: precision of each class of operation.

    Returns:
      Scores [B * P, V]; the product uses the dtype of dense products, since it is the largest.
    """
    with variables.scope("cls/predictions") as head:
        hidden = gather_positions(sequence_output, positions)
        with head.scope("transform") as transform:
            hidden = dense(hidden, transform, "dense", policy=policy)
            hidden = activate(hidden, config.hidden_act, policy=policy)
            hidden = layer_norm(hidden, transform, "LayerNorm", policy=policy)
        words, bias = variables[WORD_EMBEDDINGS], head["output_bias"]
        return ClassScores.of_product(hidden, words, bias, dtype=policy.dense)


def next_sentence_specs(config: BertConfig) -> list[VariableSpec]:
    """The variables of the head, which reads the pooled output."""
    return [
        VariableSpec("cls/seq_relationship/output_weights", (2, config.hidden_size)),
        VariableSpec("cls/seq_relationship/output_bias", (2,), 0.0),
    ]


def next_sentence_logits(
    pooled: tf.Tensor, variables: Variables, *, policy: PrecisionPolicy
) -> tf.Tensor:
    """[B, D] -> [B, 2] float32; class 0 means that the second segment follows the first."""
    with variables.scope("cls/seq_relationship") as head:
        outputs = head["output_weights"], head["output_bias"]
        return project_to_classes(pooled, *outputs, policy=policy)


def discriminator_specs(config: BertConfig) -> list[VariableSpec]:
    """The variables of the head that distinguishes replaced tokens from original ones."""
    hidden = config.hidden_size
    return [
        *dense_specs("cls/discriminator/dense", inputs=hidden, outputs=hidden),
        VariableSpec("cls/discriminator/output_weights", (1, hidden)),
        VariableSpec("cls/discriminator/output_bias", (1,), 0.0),
    ]


def discriminator_logits(
    sequence_output: tf.Tensor, variables: Variables, *, config: BertConfig, policy: PrecisionPolicy
) -> tf.Tensor:
    """[B, S, D] -> [B, S] float32, positive for tokens that look replaced.

    A dense layer with the network's activation, then one with a single output, as in
    google-research/electra (Clark et al. 2020, "ELECTRA", section 2).
    """
    with variables.scope("cls/discriminator") as head:
        hidden = dense(sequence_output, head, "dense", policy=policy)
        hidden = activate(hidden, config.hidden_act, policy=policy)
        rows = tf.reshape(hidden, [-1, config.hidden_size])
        outputs = head["output_weights"], head["output_bias"]
        logits = project_to_classes(rows, *outputs, policy=policy)
        return tf.reshape(logits, shape_of(sequence_output)[:2])


def class_specs(
    config: BertConfig,
    num_classes: int,
    bias: float | tuple[float, ...] = 0.0,
    *,
    scale: float = 1.0,
) -> list[VariableSpec]:
    """The variables of a head that classifies texts or tokens.

    ``bias`` is its initial bias, ``scale`` what its random initial weights are multiplied by.
    """
    return [
        VariableSpec(OUTPUT_WEIGHTS, (num_classes, config.hidden_size), scale=scale),
        VariableSpec(OUTPUT_BIAS, (num_classes,), bias),
    ]


def class_logits(
    x: tf.Tensor, variables: Variables, *, config: BertConfig, options: ForwardOptions
) -> tf.Tensor:
    """[B, ..., D] -> [rows, classes] float32, one row per vector: dropout and a dense layer."""
    x = apply_dropout(options.dropout, x, config.hidden_dropout_prob, site=_CLASSES_SITE)
    head = variables[OUTPUT_WEIGHTS], variables[OUTPUT_BIAS]
    return project_to_classes(tf.reshape(x, [-1, x.shape[-1]]), *head, policy=options.policy)


def gather_positions(sequence_output: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """[B, S, D] and [B, P] -> [B * P, D]: each sequence's vectors at the given positions."""
    B, S, D = shape_of(sequence_output)
    first_rows = tf.range(B, dtype=positions.dtype)[:, tf.newaxis] * tf.cast(S, positions.dtype)
    rows = tf.reshape(first_rows + positions, [-1])
    return tf.gather(tf.reshape(sequence_output, [-1, D]), rows)


def project_to_classes(
    x: tf.Tensor, weights: tf.Tensor, bias: tf.Tensor, *, policy: PrecisionPolicy
) -> tf.Tensor:
    """[rows, D] -> [rows, classes] float32; weights are [classes, D], as in Google's files."""
    return ClassScores.of_product(x, weights, bias, dtype=policy.logits).logits(policy)
