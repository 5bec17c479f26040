"""Losses as sums, to be divided by the weight of the whole global batch.

A loss over many classes has a score for each example and class. The scores of a block of rows are
all that its losses and gradients need: a row's loss depends on no other row, and its part of the
gradient is known up to a factor that all rows share. Where the scores would take much memory, each
block is differentiated right after its losses, and its scores are freed before the next block's are
computed; nothing is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import native_operations
from bert_tf.model.layers import computed_in, operand
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy

# The terms of a loss, in display order, each with the names of its metrics.
Terms = Mapping[str, Sequence[str]]

# Smallest divisor, so that a term of zero weight has a mean of 0, not 0/0.
LEAST_WEIGHT = 1e-5
ACCURACY = "accuracy"
# Measured in docs/measurements/memory.md.
ROWS_OF_A_BLOCK = 1024


class Sums(NamedTuple):
    """Sums of one term as scalars, additive over micro batches, ranks and evaluation batches.

    float32 tensors in a graph, floats outside.

    Attributes:
      loss: sum of weight times loss.
      weight: sum of the weights.
      metrics: name -> sum of weight times metric.
    """

    loss: Any
    weight: Any
    metrics: Mapping[str, Any]


def num_sums(terms: Terms) -> int:
    """The number of scalars in the sums of all terms."""
    return sum(2 + len(metrics) for metrics in terms.values())


def flatten(sums: Mapping[str, Sums], terms: Terms) -> list[Any]:
    """All sums as one list of scalars: loss, weight and metrics of each term."""
    return [
        value
        for term, metrics in terms.items()
        for value in (sums[term].loss, sums[term].weight, *map(sums[term].metrics.get, metrics))
    ]


def unflatten(values: Sequence[Any], terms: Terms) -> dict[str, Sums]:
    """The inverse of :func:`flatten`."""
    scalars = iter(values)
    return {term: _next_sums(scalars, metrics) for term, metrics in terms.items()}


def _next_sums(scalars: Iterator[Any], metrics: Sequence[str]) -> Sums:
    return Sums(next(scalars), next(scalars), {name: next(scalars) for name in metrics})


def means(sums: Mapping[str, Sums]) -> dict[str, dict[str, float]]:
    """Each term's ``loss`` and metrics by name, divided by its weight."""
    found = {}
    for term, (loss, weight, metrics) in sums.items():
        divisor = max(weight, LEAST_WEIGHT)
        found[term] = {name: value / divisor for name, value in {"loss": loss, **metrics}.items()}
    return found


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
        """Whether training should compute the losses in blocks of rows."""
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
    """Like :func:`classification_sums`, for many classes; native layers compute no logits.

    Training reads the scores of many examples in blocks of rows.
    """
    if scores.need_blocks(options):
        return score_sums_in_blocks(scores, labels, weights, options=options)
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


def score_sums_in_blocks(
    scores: ClassScores,
    labels: tf.Tensor,
    weights: tf.Tensor,
    *,
    options: ForwardOptions,
    most_rows: int = ROWS_OF_A_BLOCK,
) -> Sums:
    """Like :func:`score_sums`, for scores that ``need_blocks``, of ``most_rows`` at a time.

    Gradients of the classes and of the bias are summed over blocks in float32. No gradient flows to
    ``weights``. Raises ValueError if the factors of the scores are unknown.
    """
    if scores.factors is None:
        raise ValueError("the factors of the scores are unknown")
    rows = scores.factors[0].shape[0]
    size = math.ceil(rows / math.ceil(rows / most_rows))  # equal blocks, but for the last

    @tf.custom_gradient
    def loss_and_metric(x: tf.Tensor, classes: tf.Tensor, bias: tf.Tensor) -> object:
        totals: list[tf.Tensor] = []
        dx: list[tf.Tensor] = []
        for begin in range(0, rows, size):
            # One block at a time, since all blocks together would use the memory of the whole.
            with tf.control_dependencies([*totals, *dx]):
                part = x[begin : begin + size]
            block = slice(begin, begin + size)
            sums = score_sums(
                ClassScores.of_product(part, classes, bias, dtype=x.dtype),
                labels[block],
                weights[block],
                options=options,
            )
            dpart, *shared = tf.gradients(sums.loss, [part, classes, bias])
            dx.append(dpart)
            found = [tf.cast(v, tf.float32) for v in (sums.loss, sums.metrics[ACCURACY], *shared)]
            totals = [total + v for total, v in zip(totals, found)] if totals else found
        loss, correct, *sums_of_shared = totals

        def gradient(dloss: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
            found = [tf.concat(dx, axis=0), *sums_of_shared]
            return [
                tf.cast(dloss * tf.cast(value, tf.float32), given.dtype)
                for value, given in zip(found, (x, classes, bias))
            ]

        return (loss, correct), gradient

    loss, correct = loss_and_metric(*scores.factors, scores.bias)
    return Sums(loss, tf.reduce_sum(weights), {ACCURACY: correct})
