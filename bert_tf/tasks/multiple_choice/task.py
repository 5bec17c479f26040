"""The task of multiple choice: one score for each choice of an example.

The head is that of transformers' ``BertForMultipleChoice``: BERT's pooler, dropout and a dense
layer with one output score each sequence, and the cross entropy is over the choices of an example
(Devlin et al. 2019, section 4.4). Dimensions: B examples, C choices, S positions, D hidden_size.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs, pooled_output
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS, Head, class_logits, class_specs
from bert_tf.model.layers import rows_of_sequences, shape_of
from bert_tf.model.losses import ACCURACY, ClassScores, Decisions, Sums, Terms, classification_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import EncoderTask, Features, num_sequences
from bert_tf.model.token_rows import mask_of_positions
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.model_directory.classes import CHOICE

LABEL = "label"

CHOICE_HEAD = Head(
    "multiple-choice head",
    (OUTPUT_WEIGHTS, OUTPUT_BIAS),
    "run_multiple_choice.py",
    "bert/pooler",
    kinds=(CHOICE,),
)

# The score of a choice that an example does not have; also finite in float16.
_ABSENT = -10_000.0


@dataclasses.dataclass(frozen=True)
class ChoiceTask(EncoderTask):
    """One of several sequences per example.

    A :class:`bert_tf.tasks.distillation.task.DistilledTask`. Inputs are [B, C, S]; labels are
    [B, 1], numbers of choices. A sequence of one token is the place of a choice that an example
    does not have. Inputs [B, S] are scored alone, for examples that are put together elsewhere.
    """

    config: BertConfig

    heads: ClassVar = (CHOICE_HEAD,)
    inputs: ClassVar = INPUTS
    terms: ClassVar[Terms] = {LABEL: (ACCURACY,)}
    loss_name: ClassVar = "cross_entropy"
    num_classes: ClassVar = None

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT with its pooler, and of a head with one output."""
        return [*bert_specs(self.config, pooler=True), *class_specs(self.config, 1)]

    def positions_read(self, features: Features) -> tf.Tensor:
        """The position of [CLS] in every sequence, [B * C, S]."""
        mask = rows_of_sequences(features["input_mask"])
        return mask_of_positions(mask, tf.zeros_like(mask[:, :1]))

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> tf.Tensor:
        """The scores, [B, C] float32, from the encoder's output [B * C, S, D]."""
        pooled = pooled_output(sequence_output, variables, policy=options.policy)
        logits = class_logits(pooled, variables, config=self.config, options=options)
        mask = features["input_mask"]
        scores = tf.reshape(logits, shape_of(mask)[:-1])
        is_present = tf.reduce_sum(mask, axis=-1) > 1
        return tf.where_v2(is_present, scores, _ABSENT)

    def decisions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> Decisions:
        """The scores of the choices of every example."""
        del features, options
        scores = ClassScores(outputs, tf.zeros(shape_of(outputs)[1:]))
        return Decisions(scores, tf.ones(tf.shape(outputs)[:1]))

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of examples."""
        return {LABEL: num_sequences(features)}

    def losses(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The cross entropies of the right choices."""
        labels, weights = features["labels"][:, 0], tf.ones(tf.shape(outputs)[:1])
        return {LABEL: classification_sums(outputs, labels, weights, policy=options.policy)}

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``scores`` float32, [B, C], or [B] for inputs [B, S]."""
        del features, options
        return {"scores": outputs}
