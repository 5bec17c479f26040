"""The task of classification or regression of sentences and sentence pairs.

Devlin et al. 2019, section 4.1: a dense layer on the pooled output (``pooling.py``), with cross
entropy for classes and squared error for regression.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.encoder_task import EncoderTask
from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS, Head, class_logits, class_specs
from bert_tf.model.losses import ACCURACY, ClassScores, Decisions, classification_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums, Terms
from bert_tf.model.task import Features, num_sequences
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.tasks.classification.pooling import CLS, Pooling

LABEL = "label"
LABELS = "labels"

CLASSIFICATION_HEAD = Head(
    "classification head",
    (OUTPUT_WEIGHTS, OUTPUT_BIAS),
    "run_classifier.py",
    CLS.scope,
    of_words=False,
)


@dataclasses.dataclass(frozen=True)
class ClassificationTask(EncoderTask):
    """One class, or one score, per sequence.

    A :class:`bert_tf.tasks.distillation.losses.DistilledTask`; labels are [B] or [B, 1] float32.

    Attributes:
      config: the network's configuration.
      num_classes: number of classes; 1 for regression.
      pooling: how the head pools the encoder's output.
    """

    config: BertConfig
    num_classes: int
    pooling: Pooling = CLS

    inputs: ClassVar = INPUTS

    @property
    def heads(self) -> tuple[Head, ...]:
        """The classification head with its pooling."""
        return (CLASSIFICATION_HEAD._replace(only_reader_of=self.pooling.scope),)

    @property
    def loss_name(self) -> str:
        """The name of the loss, for metrics."""
        return "squared_error" if self.num_classes == 1 else "cross_entropy"

    @property
    def terms(self) -> Terms:
        """A single term; regression has no accuracy."""
        return {LABEL: () if self.num_classes == 1 else (ACCURACY,)}

    def specs(self) -> list[VariableSpec]:
        """The variables of the encoder, the pooling and the head."""
        return [
            *bert_specs(self.config, pooler=False),
            *self.pooling.specs(self.config),
            *class_specs(self.config, self.num_classes),
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
        scores = ClassScores(outputs, tf.zeros([self.num_classes]))
        return Decisions(scores, tf.ones(tf.shape(outputs)[:1]))

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of sequences."""
        return {LABEL: num_sequences(features)}

    def losses(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The cross entropies, or the squared errors for regression."""
        labels = tf.reshape(features[LABELS], [-1])
        weights = tf.ones_like(labels)
        if self.num_classes > 1:
            classes = tf.cast(labels, tf.int32)
            sums = classification_sums(outputs, classes, weights, policy=options.policy)
        else:
            errors = tf.square(outputs[:, 0] - labels)
            sums = Sums(loss=tf.reduce_sum(errors), weight=tf.reduce_sum(weights), metrics={})
        return {LABEL: sums}

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``logits`` [B, num_classes] float32; for regression, the score itself."""
        del features, options
        return {"logits": outputs}

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Empty: metrics such as correlations need all predictions."""
        del sums
        return {}
