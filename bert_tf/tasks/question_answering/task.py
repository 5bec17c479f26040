"""The span task of question answering: locates the answer to a question in a context."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.encoder_task import EncoderTask
from bert_tf.model.layers import shape_of
from bert_tf.model.losses import ACCURACY, ClassScores, Decisions
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums, Terms
from bert_tf.model.task import Features, num_sequences
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.tasks.question_answering.graph import (
    SPAN_HEAD,
    SpanLogits,
    position_scores,
    span_head,
    span_sums,
    squad_specs,
)

if TYPE_CHECKING:
    from bert_tf.tasks.question_answering.spans import SpanCandidates

POSITION = "position"


@dataclasses.dataclass(frozen=True)
class SpanTask(EncoderTask):
    """Predicts the first and last position of an answer: two targets per sequence, one loss term.

    Implements :class:`bert_tf.tasks.distillation.losses.DistilledTask`.

    Attributes:
      config: the network's configuration.
      num_candidates: number of best positions to return.
    """

    config: BertConfig
    num_candidates: int = 20

    heads: ClassVar = (SPAN_HEAD,)
    inputs: ClassVar = INPUTS
    terms: ClassVar[Terms] = {POSITION: (ACCURACY,)}
    loss_name: ClassVar = "cross_entropy"
    num_classes: ClassVar = None

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler, and of the span head."""
        return squad_specs(self.config)

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> SpanLogits:
        """The logits of every position, from the encoder's output."""
        del features
        return span_head(sequence_output, variables, options)

    def decisions(
        self, outputs: SpanLogits, features: Features, options: ForwardOptions
    ) -> Decisions:
        """The logits of first and of last positions, each with half the weight."""
        del options
        scores = position_scores(outputs, features)
        S = shape_of(scores)[1]
        weights = tf.fill(tf.shape(scores)[:1], 0.5)
        return Decisions(ClassScores(scores, tf.zeros([S])), weights)

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of sequences."""
        return {POSITION: num_sequences(features)}

    def losses(
        self, outputs: SpanLogits, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The cross entropies of both positions."""
        return {POSITION: span_sums(outputs, features, options)}

    def predictions(
        self, outputs: SpanLogits, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """The fields of :class:`SpanCandidates`."""
        del options
        k = min(self.num_candidates, self.config.max_position_embeddings)
        return span_candidates(outputs, features, k=k)._asdict()

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Empty: answers are scored, not positions."""
        del sums
        return {}


def span_candidates(
    logits: SpanLogits, features: Mapping[str, tf.Tensor], *, k: int
) -> SpanCandidates:
    """The K best first and last positions in every context.

    Args:
      logits: start and end logits, [B, S] each.
      features: ``input_mask``, ``segment_ids`` [B, S]; the context is the second segment without
        its final [SEP].
      k: the number of candidates K, at least 1.
    """
    from bert_tf.tasks.question_answering.spans import SpanCandidates

    mask = features["input_mask"]
    _, S = shape_of(mask)
    last = tf.reduce_sum(mask, axis=-1, keepdims=True) - 1
    is_before_last = tf.cast(tf.range(S)[tf.newaxis] < last, mask.dtype)
    in_context = mask * features["segment_ids"] * is_before_last
    found = [_best(scores, in_context, k) for scores in logits]
    (start_logits, start_indices), (end_logits, end_indices) = found
    null_logits = logits.start[:, 0] + logits.end[:, 0]
    return SpanCandidates(start_indices, start_logits, end_indices, end_logits, null_logits)


def _best(scores: tf.Tensor, allowed: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The k highest allowed scores [B, S]: values and indices, [B, k] each."""
    # A constant, since tf2onnx multiplies other values by 0 where they are not chosen.
    scores = tf.where_v2(tf.cast(allowed, tf.bool), scores, tf.constant(-math.inf))
    # A sequence may have fewer than k positions.
    scores = tf.pad(scores, [[0, 0], [0, k]], constant_values=-math.inf)
    values, indices = tf.math.top_k(scores, k=k)
    return values, indices
