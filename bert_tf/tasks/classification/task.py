"""The task of classification or regression of sentences and sentence pairs.

Devlin et al. 2019, section 4.1: a dense layer on the pooled output, with cross entropy for classes
and squared error for regression. Dimensions: B sequences, S positions, D the width of the network.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs, pooled_output
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS, Head, class_logits, class_specs
from bert_tf.model.layers import computed_in
from bert_tf.model.losses import ACCURACY, ClassScores, Decisions, Sums, Terms, classification_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import EncoderTask, Features, num_sequences
from bert_tf.model.token_rows import mask_of_positions
from bert_tf.model.variables import Variables, VariableSpec, dense_specs
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, TEXT_KINDS

LABEL = "label"
LABELS = "labels"


class Pooling(Protocol):
    """Pools the encoder's output into one vector per sequence; holds no tensors.

    Attributes:
      scope: scope of its variables, which checkpoints without a classification head may lack.
    """

    scope: str

    def specs(self, config: BertConfig) -> list[VariableSpec]:
        """Its variables, all under ``scope``."""

    def positions_read(self, mask: tf.Tensor) -> tf.Tensor:
        """The positions to read, [B, S] integers, from the mask of tokens [B, S].

        At other positions the encoder's output is undefined.
        """

    def pool(
        self,
        sequence_output: tf.Tensor,
        mask: tf.Tensor,
        variables: Variables,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """Pools [B, S, D] float32 to [B, D]; ``variables`` are the network's, from the root."""


class ClsPooling:
    """BERT's pooler (Devlin et al. 2019): a dense layer with tanh at [CLS]."""

    scope = "bert/pooler"

    def specs(self, config: BertConfig) -> list[VariableSpec]:
        """The variables of the dense layer."""
        width = config.hidden_size
        return dense_specs(f"{self.scope}/dense", inputs=width, outputs=width)

    def positions_read(self, mask: tf.Tensor) -> tf.Tensor:
        """The position of [CLS]."""
        return mask_of_positions(mask, tf.zeros_like(mask[:, :1]))

    def pool(
        self,
        sequence_output: tf.Tensor,
        mask: tf.Tensor,
        variables: Variables,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """The pooled output."""
        del mask
        return pooled_output(sequence_output, variables, policy=options.policy)


CLS = ClsPooling()

CLASSIFICATION_HEAD = Head(
    "classification head",
    (OUTPUT_WEIGHTS, OUTPUT_BIAS),
    "run_classifier.py",
    CLS.scope,
    kinds=(*TEXT_KINDS, None),
)


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
        losses = -tf.nn.log_softmax(logits)
        if self.class_weights is not None:
            losses *= tf.cast(tf.constant(self.class_weights), losses.dtype)
        return tf.reduce_mean(losses, axis=-1)


@dataclasses.dataclass(frozen=True)
class ClassificationTask(EncoderTask):
    """One class, or one score, per sequence.

    A :class:`bert_tf.tasks.distillation.task.DistilledTask`; labels are [B] or [B, 1] float32.

    Attributes:
      num_classes: number of classes; 1 for a regression.
      pooling: how the head reads the encoder.
      loss: what the head is trained for.
      initial_bias: what the head's bias starts from, [num_classes], or one value for all.
      unit: what the head's random weights start in: the deviation of ratings.
      classes: as in :class:`bert_tf.model.heads.Head`.
    """

    config: BertConfig
    num_classes: int
    pooling: Pooling = CLS
    loss: ClassificationLoss = dataclasses.field(default_factory=ClassificationLoss)
    initial_bias: float | tuple[float, ...] = 0.0
    unit: float = 1.0
    classes: tuple[str, ...] | None = None

    inputs: ClassVar = INPUTS

    @property
    def heads(self) -> tuple[Head, ...]:
        """The classification head with its pooling."""
        head = CLASSIFICATION_HEAD._replace(only_reader_of=self.pooling.scope, classes=self.classes)
        return (head,)

    @property
    def loss_name(self) -> str:
        """What the loss is, for metrics."""
        return self.loss.name

    @property
    def terms(self) -> Terms:
        """One term; only a single class per text has an accuracy."""
        return {LABEL: self.loss.metrics}

    def specs(self) -> list[VariableSpec]:
        """The variables of the encoder, the pooling and the head."""
        return [
            *bert_specs(self.config, pooler=False),
            *self.pooling.specs(self.config),
            *class_specs(self.config, self.num_classes, self.initial_bias, scale=self.unit),
        ]

    def positions_read(self, features: Features) -> tf.Tensor:
        """The positions that the pooling reads."""
        return self.pooling.positions_read(features["input_mask"])

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """The logits, [B, num_classes] float32, from the encoder's output."""
        pooled = self.pooling.pool(sequence_output, features["input_mask"], variables, options)
        return class_logits(pooled, variables, config=self.config, options=options)

    def decisions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> Decisions:
        """The class logits, or the regression score, of every sequence."""
        del features, options
        if self.loss.kind == MULTI_LABEL:  # each class is a choice of its own: no or yes
            pairs = tf.reshape(tf.stack([tf.zeros_like(outputs), outputs], axis=-1), [-1, 2])
            each = tf.fill(tf.shape(pairs)[:1], 1 / self.num_classes)
            return Decisions(ClassScores(pairs, tf.zeros([2])), each)
        scores = ClassScores(outputs, tf.zeros([self.num_classes]))
        return Decisions(scores, tf.ones(tf.shape(outputs)[:1]))

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of sequences, or the sum of the weights of their classes."""
        if self.loss.class_weights is None:
            return {LABEL: num_sequences(features)}
        return {LABEL: tf.reduce_sum(self.loss.weights(_labels(features)))}

    def losses(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The cross entropies, or squared errors in a regression."""
        return {LABEL: self.loss.sums(outputs, _labels(features), options=options)}

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``logits`` [B, num_classes] float32; for regression, the score itself."""
        del features, options
        return {"logits": outputs}


def _labels(features: Features) -> tf.Tensor:
    """[B, targets] float32."""
    labels = features[LABELS]
    return labels[:, tf.newaxis] if labels.shape.rank == 1 else labels
