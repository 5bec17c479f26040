"""Classification losses as sums."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import native_operations
from bert_tf.model.layers import computed_in, operand
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.sums import Sums

ACCURACY = "accuracy"
# Measured in docs/measurements/memory.md.
ROWS_OF_A_BLOCK = 1024


class ClassScores(NamedTuple):
    """The output of a head: two tensors whose sum is the logits.

    Attributes:
      product: [examples, classes], in the dtype of the product.
      bias: [classes] float32.
      factors: the product's factors, [examples, width] and [classes, width]; None if losses must
        read the product itself.
    """

    product: tf.Tensor
    bias: tf.Tensor
    factors: tuple[tf.Tensor, tf.Tensor] | None = None

    @classmethod
    def of_product(
        cls, x: tf.Tensor, classes: tf.Tensor, bias: tf.Tensor, *, dtype: tf.DType
    ) -> ClassScores:
        """Multiplies [examples, width] by [classes, width] in ``dtype``."""
        with tf.name_scope("logits"):
            factors = tf.cast(x, dtype), operand(classes, dtype)
            return cls(tf.matmul(*factors, transpose_b=True), bias, factors)

    def logits(self, policy: PrecisionPolicy) -> tf.Tensor:
        """[examples, classes] float32."""
        with tf.name_scope("logits"):
            return computed_in(policy.logits, tf.nn.bias_add, self.product, self.bias)

    def have_native_losses(self, options: ForwardOptions) -> bool:
        """Whether native operations can compute losses from the product, without logits."""
        policy = options.policy
        native = options.native_layers and {policy.logits, policy.loss} == {tf.float32}
        return native and self.product.dtype in (tf.float32, tf.bfloat16)

    def need_blocks(self, options: ForwardOptions) -> bool:
        """Whether training should compute the losses in blocks of rows (``row_blocks.py``)."""
        rows = self.product.shape[0]
        is_large = rows is not None and rows > 2 * ROWS_OF_A_BLOCK
        is_training = self.factors is not None and options.dropout is not None
        return is_large and is_training and self.have_native_losses(options)

    def rows(self, indices: tf.Tensor) -> ClassScores:
        """Selects the scores of some examples."""
        return ClassScores(tf.gather(self.product, indices), self.bias)


class Decisions(NamedTuple):
    """Soft targets among classes, which a student should learn from its teacher.

    Attributes:
      scores: [N, C]; a single class means the outputs of a regression.
      weights: [N] float32, 0 for padding.
    """

    scores: ClassScores
    weights: tf.Tensor


def classification_sums(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, policy: PrecisionPolicy
) -> Sums:
    """Cross entropy and accuracy of [examples, classes] logits.

    Args:
      logits: [examples, classes] float32.
      labels: [examples] integers.
      weights: [examples] float32, 0 for examples that only pad the batch.
      policy: its ``loss`` is the dtype of the cross entropy.
    """
    return _weighted_sums(*_losses(logits, labels, policy=policy), labels, weights)


def score_sums(
    scores: ClassScores, labels: tf.Tensor, weights: tf.Tensor, *, options: ForwardOptions
) -> Sums:
    """Like :func:`classification_sums`, for many classes; native layers compute no logits."""
    return _weighted_sums(*score_losses(scores, labels, options=options), labels, weights)


def score_losses(
    scores: ClassScores, labels: tf.Tensor, *, options: ForwardOptions
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each example's cross entropy, float32 [examples], and best class, integer [examples].

    With native layers, one operation reads the product, adds the bias and finds the best class in
    a single pass, and keeps one number per example for the backward pass.
    """
    if not scores.have_native_losses(options):
        return _losses(scores.logits(options.policy), labels, policy=options.policy)
    labels = tf.cast(labels, tf.int32)
    losses, best, _ = native_operations().bert_tf_softmax_loss(
        product=scores.product, bias=scores.bias, labels=labels
    )
    return losses, best


def _losses(
    logits: tf.Tensor, labels: tf.Tensor, *, policy: PrecisionPolicy
) -> tuple[tf.Tensor, tf.Tensor]:
    """Like :func:`score_losses`, from [examples, classes] logits."""
    losses = computed_in(
        policy.loss,
        lambda scores: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores),
        logits,
    )
    return losses, tf.argmax(logits, axis=-1, output_type=labels.dtype)


def _weighted_sums(
    losses: tf.Tensor, best: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> Sums:
    correct = tf.cast(tf.equal(best, tf.cast(labels, best.dtype)), tf.float32)
    return Sums(
        loss=tf.reduce_sum(weights * losses),
        weight=tf.reduce_sum(weights),
        metrics={ACCURACY: tf.reduce_sum(weights * correct)},
    )
