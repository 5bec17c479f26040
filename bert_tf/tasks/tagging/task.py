"""The task of labelling words, for example with named entities or parts of speech.

Devlin et al. 2019, section 5.3: a dense layer on the output at the first piece of every word. A
word's other pieces, [CLS] and [SEP] have no labels.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS, Head, class_logits, class_specs
from bert_tf.model.losses import (
    ACCURACY,
    ClassScores,
    Decisions,
    Sums,
    Terms,
    classification_sums,
    score_losses,
)
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import EncoderTask, Features
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.model_directory.classes import WORD_LABELS
from bert_tf.records.layouts import LABEL_IDS, WORD_STARTS
from bert_tf.tasks.tagging.files import LABELS

LABEL = "label"
CROSS_ENTROPIES = "cross_entropies"

# Named as in NVIDIA's checkpoints, without a scope.
TAGGING_HEAD = Head(
    "tagging head", (OUTPUT_WEIGHTS, OUTPUT_BIAS), "run_ner.py", kinds=(WORD_LABELS,)
)


@dataclasses.dataclass(frozen=True)
class TaggingTask(EncoderTask):
    """One class per word.

    A :class:`bert_tf.tasks.distillation.task.DistilledTask`. Among the inputs is ``word_starts``
    [B, S], 1 at the first piece of a word; labels are ``label_ids`` [B, S], the classes of the
    words at these positions, 0 elsewhere. The head's bias starts from ``initial_bias``,
    [num_classes], or one value for all.
    """

    config: BertConfig
    num_classes: int
    initial_bias: float | tuple[float, ...] = 0.0

    heads: ClassVar = (TAGGING_HEAD,)
    inputs: ClassVar = (*INPUTS, WORD_STARTS)
    terms: ClassVar[Terms] = {LABEL: (ACCURACY,)}
    loss_name: ClassVar = "cross_entropy"

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler, and of the head."""
        return [
            *bert_specs(self.config, pooler=False),
            *class_specs(self.config, self.num_classes, self.initial_bias),
        ]

    def positions_read(self, features: Features) -> tf.Tensor:
        """The first piece of every word."""
        return features[WORD_STARTS]

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """The logits of every position, [B * S, num_classes] float32, from the encoder's output."""
        del features
        return class_logits(sequence_output, variables, config=self.config, options=options)

    def decisions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> Decisions:
        """The label logits of every word."""
        del options
        return Decisions(self._scores(outputs), _word_weights(features))

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of words."""
        return {LABEL: tf.reduce_sum(_word_weights(features))}

    def losses(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The cross entropies of the words' labels."""
        weights = _word_weights(features)
        sums = classification_sums(outputs, _label_ids(features), weights, policy=options.policy)
        return {LABEL: sums}

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``labels`` int32 and ``word_starts``, [B, S] each.

        For features with ``label_ids`` also ``cross_entropies``, float32 [B, S]. Only the values at
        word starts are meaningful.
        """
        shape = tf.shape(features[WORD_STARTS])
        best = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        predictions = {LABELS: tf.reshape(best, shape), WORD_STARTS: features[WORD_STARTS]}
        if LABEL_IDS in features:
            scores, labels = self._scores(outputs), _label_ids(features)
            losses, _ = score_losses(scores, labels, options=options)
            predictions[CROSS_ENTROPIES] = tf.reshape(losses, shape)
        return predictions

    def _scores(self, outputs: tf.Tensor) -> ClassScores:
        return ClassScores(outputs, tf.zeros([self.num_classes]))


def _word_weights(features: Features) -> tf.Tensor:
    """1 for word starts, 0 for other positions, [B * S] float32."""
    return tf.reshape(tf.cast(features[WORD_STARTS], tf.float32), [-1])


def _label_ids(features: Features) -> tf.Tensor:
    """[B * S] int32."""
    return tf.reshape(tf.cast(features[LABEL_IDS], tf.int32), [-1])
