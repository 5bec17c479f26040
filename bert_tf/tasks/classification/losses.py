"""The losses of classification: cross entropy, one binary choice per class, squared error."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter

import tensorflow.compat.v1 as tf

from bert_tf.finetune.classes import log_frequencies
from bert_tf.model.layers import computed_in
from bert_tf.model.losses import ACCURACY, classification_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from bert_tf.tasks.classification.text_task import TextFile


@dataclasses.dataclass(frozen=True)
class ClassificationLoss:
    """What the outputs of the head are trained for.

    The formulas are those of PyTorch's CrossEntropyLoss (``weight``, ``label_smoothing``),
    BCEWithLogitsLoss (``pos_weight``) and MSELoss.

    Attributes:
      kind: SINGLE_LABEL, MULTI_LABEL or REGRESSION.
      class_weights: one per class, None for equal ones. With MULTI_LABEL, that of the texts that
        have the class, compared with those that do not.
      label_smoothing: the part of the target that all classes share.
    """

    kind: str = SINGLE_LABEL
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of :meth:`sums`."""
        return (ACCURACY,) if self.kind == SINGLE_LABEL else ()

    @property
    def name(self) -> str:
        """What the loss is, for metrics."""
        return {
            SINGLE_LABEL: "cross_entropy",
            MULTI_LABEL: "binary_cross_entropy",
            REGRESSION: "squared_error",
        }[self.kind]

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Weights [B] float32 of texts with ``labels`` [B, targets] float32."""
        if self.kind == SINGLE_LABEL and self.class_weights is not None:
            return tf.gather(tf.constant(self.class_weights), tf.cast(labels[:, 0], tf.int32))
        return tf.ones_like(labels[:, 0])

    def sums(self, logits: tf.Tensor, labels: tf.Tensor, *, options: ForwardOptions) -> Sums:
        """The loss of a batch, as sums.

        ``logits`` are [B, classes] float32, [B, 1] for a regression; ``labels`` [B, targets]
        float32: class numbers, 0 or 1 for each class, or ratings.
        """
        weights = self.weights(labels)
        if self.kind == REGRESSION:
            losses = tf.square(logits[:, 0] - labels[:, 0])
        elif self.kind == MULTI_LABEL:
            losses = computed_in(options.policy.loss, self._binary, logits, labels)
        else:
            classes = tf.cast(labels[:, 0], tf.int32)
            plain = classification_sums(logits, classes, weights, policy=options.policy)
            if not self.label_smoothing:
                return plain
            smooth = computed_in(options.policy.loss, self._uniform, logits)
            loss = (1 - self.label_smoothing) * plain.loss
            loss += self.label_smoothing * tf.reduce_sum(smooth)
            return plain._replace(loss=loss)
        return Sums(loss=tf.reduce_sum(weights * losses), weight=tf.reduce_sum(weights), metrics={})

    def _binary(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """The mean over classes of the binary cross entropies, [B]."""
        targets = labels
        if self.label_smoothing:
            targets = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        if self.class_weights is None:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
        else:
            positive = tf.cast(tf.constant(self.class_weights), logits.dtype)
            losses = tf.nn.weighted_cross_entropy_with_logits(targets, logits, positive)
        return tf.reduce_mean(losses, axis=-1)

    def _uniform(self, logits: tf.Tensor) -> tf.Tensor:
        """The mean over classes of the weighted negative log probabilities, [B]."""
        found = -tf.nn.log_softmax(logits)
        if self.class_weights is not None:
            found *= tf.cast(tf.constant(self.class_weights), found.dtype)
        return tf.reduce_mean(found, axis=-1)


def balanced_weights(file: TextFile) -> tuple[float, ...]:
    """Weights that make up for uneven classes.

    For one class per text N / (classes * texts of the class), as scikit-learn's "balanced"; for
    several, texts without the class / texts with it. A class without texts has weight 1.
    """
    counts, total = _texts_of_classes(file), len(file.rows)
    if file.task.multi_label:
        found = [(total - count) / count if count else 1.0 for count in counts]
        return tuple(weight or 1.0 for weight in found)
    return tuple(total / (len(counts) * count) if count else 1.0 for count in counts)


def best_constant(
    file: TextFile, class_weights: tuple[float, ...] | None = None
) -> tuple[float, ...]:
    """The outputs with the least loss on a training set for a network that ignores the text.

    The mean of ratings, the logarithms of the frequencies of classes (:func:`log_frequencies`), or
    the log-odds of each class of several, with one text of weight 1 more per class and answer.
    """
    if file.task.is_regression:
        return (statistics.fmean(_ratings(file)),)
    counts, total = _texts_of_classes(file), len(file.rows)
    weighted = [
        weight * count for weight, count in zip(class_weights or [1.0] * len(counts), counts)
    ]
    if file.task.multi_label:
        pairs = zip(weighted, counts)
        return tuple(math.log((given + 1) / (total - count + 1)) for given, count in pairs)
    return log_frequencies(weighted)


def rating_unit(file: TextFile) -> float:
    """The standard deviation of ratings: 1 if all are equal, and for classes.

    An update changes a weight by about the learning rate, whatever the ratings are. In this unit,
    the head learns a range of 0 to 100 as fast as one of 0 to 5.
    """
    return (statistics.pstdev(_ratings(file)) if file.task.is_regression else 0.0) or 1.0


def _ratings(file: TextFile) -> list[float]:
    labels = (row.label for row in file.rows)
    return [label for label in labels if label is not None and not isinstance(label, tuple)]


def _texts_of_classes(file: TextFile) -> list[int]:
    """The number of texts of each class."""
    counts: Counter[int] = Counter()
    for row in file.rows:
        counts.update(row.label if isinstance(row.label, tuple) else [int(row.label or 0)])
    return [counts[number] for number in range(len(file.task.classes))]
