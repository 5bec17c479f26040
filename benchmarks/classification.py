"""A classifier of sentences, from the library's parts: what a fine-tuning on GLUE trains.

Devlin et al. 2019, section 4.1: a layer on the pooled output, cross entropy for classes, the square
of the error for a rating.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.bert import bert_output, bert_specs, pooled_output
from bert_tf.model.dropout import Dropout, apply_dropout
from bert_tf.model.heads import project_to_classes
from bert_tf.model.losses import ClassificationSums, classification_sums
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import VariableSpec, create_variables

LABELS = "labels"
HEAD_VARIABLES = ("output_weights", "output_bias")  # google-research/bert's names

_TERM = "label"
_POOLED_SITE = (1 << 16) - 1  # of dropout: beyond all layers'


class ClassificationObjective:
    """One decision a sequence."""

    terms = (_TERM,)

    def __init__(
        self,
        config: BertConfig,
        policy: PrecisionPolicy,
        *,
        classes: int,
        seed: int,
        skip_padding: bool = True,
    ) -> None:
        """One class is a rating; ``seed`` decides the initial weights that no checkpoint has."""
        self._config = config
        self._policy = policy
        self._classes = classes
        self._seed = seed
        self._skip_padding = skip_padding

    def create_variables(self) -> None:
        """Creates the network's variables in the current graph."""
        weights, bias = HEAD_VARIABLES
        self._variables = create_variables(
            [
                *bert_specs(self._config, pooler=True),
                VariableSpec(weights, (self._classes, self._config.hidden_size)),
                VariableSpec(bias, (self._classes,), "zeros"),
            ],
            initializer_range=self._config.initializer_range,
            seed=self._seed,
        )

    def weights(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The number of sequences in a batch."""
        return {_TERM: tf.cast(tf.shape(features["input_ids"])[0], tf.float32)}

    def sums(
        self, features: Mapping[str, tf.Tensor], *, dropout: Dropout | None
    ) -> dict[str, ClassificationSums]:
        """The forward pass of one micro batch; ``labels`` are [B] float32."""
        logits, labels = self.logits(features, dropout=dropout), features[LABELS]
        weights = tf.ones_like(labels)
        if self._classes > 1:
            classes = tf.cast(labels, tf.int32)
            return {_TERM: classification_sums(logits, classes, weights, policy=self._policy)}
        errors = logits[:, 0] - labels
        is_near = tf.cast(tf.abs(errors) < 0.5, tf.float32)
        return {
            _TERM: ClassificationSums(
                loss_sum=tf.reduce_sum(tf.square(errors)),
                weight_sum=tf.reduce_sum(weights),
                correct_sum=tf.reduce_sum(is_near),
            )
        }

    def logits(
        self, features: Mapping[str, tf.Tensor], *, dropout: Dropout | None = None
    ) -> tf.Tensor:
        """[B, classes] float32."""
        hidden = bert_output(
            self._variables,
            self._config,
            features,
            policy=self._policy,
            dropout=dropout,
            skip_padding=self._skip_padding,
        ).sequence_output
        pooled = pooled_output(hidden, self._variables, policy=self._policy)
        rate = self._config.hidden_dropout_prob
        pooled = apply_dropout(dropout, pooled, rate, site=_POOLED_SITE)
        head = (self._variables[name] for name in HEAD_VARIABLES)
        return project_to_classes(pooled, *head, policy=self._policy)
