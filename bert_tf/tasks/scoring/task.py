"""The task of scoring masked words: the loss of each hidden token, given the others."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs
from bert_tf.model.chosen_positions import output_at_positions
from bert_tf.model.config import BertConfig
from bert_tf.model.encoder_task import PredictingTask
from bert_tf.model.heads import MASKED_LM_HEAD, masked_lm_scores, masked_lm_specs
from bert_tf.model.losses import score_losses
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Features
from bert_tf.model.variables import Variables, VariableSpec

LOSSES = "losses"


@dataclasses.dataclass(frozen=True)
class ScoringTask(PredictingTask):
    """Losses of the masked language model at chosen positions of sequences without padding.

    Features are ``input_ids`` and ``segment_ids`` [B, S], where chosen tokens are hidden, and
    ``masked_lm_positions`` and ``masked_lm_ids`` [B, P], the tokens to score; all are integers.

    Computes only what these losses need: the last layer and the head run at the chosen positions
    only and, with native layers, logits are never materialised.
    """

    config: BertConfig

    heads: ClassVar = (MASKED_LM_HEAD,)
    inputs: ClassVar = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler, and of the head."""
        return [*bert_specs(self.config, pooler=False), *masked_lm_specs(self.config)]

    def outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> tf.Tensor:
        """The losses (nats), [B, P] float32."""
        positions = features["masked_lm_positions"]
        sequences = {**features, "input_mask": tf.ones_like(features["input_ids"])}
        hidden = output_at_positions(variables, self.config, sequences, positions, options)
        everywhere = tf.broadcast_to(tf.range(tf.shape(positions)[1]), tf.shape(positions))
        scores = masked_lm_scores(
            hidden, everywhere, variables, config=self.config, policy=options.policy
        )
        labels = tf.reshape(features["masked_lm_ids"], [-1])
        with tf.name_scope("cls/predictions/loss"):
            losses, _ = score_losses(scores, labels, options=options)
        return tf.reshape(losses, tf.shape(positions))

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``losses`` [B, P] float32."""
        del features, options
        return {LOSSES: outputs}
