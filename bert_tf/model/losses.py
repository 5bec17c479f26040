"""Classification losses as sums: whoever knows the whole global batch divides by its weight."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.layers import computed_in
from bert_tf.model.precision import PrecisionPolicy


class ClassificationSums(NamedTuple):
    """Scalar float32 sums that add up over micro batches, ranks and evaluation batches.

    Attributes:
      loss_sum: of weight times cross entropy, in nats.
      weight_sum: of the weights.
      correct_sum: of the weights of the examples whose best class is the label.
    """

    loss_sum: tf.Tensor
    weight_sum: tf.Tensor
    correct_sum: tf.Tensor


def classification_sums(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, policy: PrecisionPolicy
) -> ClassificationSums:
    """Cross entropy and accuracy of [examples, classes] logits.

    Args:
      logits: [examples, classes] float32.
      labels: [examples] integers.
      weights: [examples] float32, 0 for an example that only fills up the batch.
      policy: its ``loss`` is the type of the cross entropy.
    """
    losses = computed_in(
        policy.loss,
        lambda scores: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores),
        logits,
    )
    best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    correct = tf.cast(tf.equal(best, labels), tf.float32)
    return ClassificationSums(
        loss_sum=tf.reduce_sum(weights * losses),
        weight_sum=tf.reduce_sum(weights),
        correct_sum=tf.reduce_sum(weights * correct),
    )
