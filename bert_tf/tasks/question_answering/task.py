"""The span task of question answering: locates the answer to a question in a context.

Devlin et al. 2019, section 4.2. Dimensions: B sequences, S positions, D = hidden_size.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.heads import Head, project_to_classes
from bert_tf.model.layers import shape_of
from bert_tf.model.losses import ACCURACY, ClassScores, Decisions, Sums, Terms, classification_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import EncoderTask, Features, num_sequences
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.tasks.question_answering.windows import SpanCandidates

POSITION = "position"

SQUAD_SCOPE = "cls/squad"
SPAN_HEAD = Head("span head", (SQUAD_SCOPE,), "run_squad.py")

# Added to the logits of padding: exp(-10000) is 0 in float32.
_PADDING_BIAS = -10000.0


class SpanLogits(NamedTuple):
    """Logits of each position as first and as last of the answer, [B, S] float32 each."""

    start: tf.Tensor
    end: tf.Tensor


@dataclasses.dataclass(frozen=True)
class SpanTask(EncoderTask):
    """Predicts the first and last position of an answer: two targets per sequence, one loss term.

    A :class:`bert_tf.tasks.distillation.task.DistilledTask`, whose predictions are the
    ``num_candidates`` best positions.
    """

    config: BertConfig
    num_candidates: int = 20

    heads: ClassVar = (SPAN_HEAD,)
    inputs: ClassVar = INPUTS
    terms: ClassVar[Terms] = {POSITION: (ACCURACY,)}
    loss_name: ClassVar = "cross_entropy"
    num_classes: ClassVar = None

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler, and of the head, under google's names."""
        return [
            *bert_specs(self.config, pooler=False),
            VariableSpec(f"{SQUAD_SCOPE}/output_weights", (2, self.config.hidden_size)),
            VariableSpec(f"{SQUAD_SCOPE}/output_bias", (2,), 0.0),
        ]

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> SpanLogits:
        """The logits of every position, from the encoder's output, [B, S, D] float32."""
        del features
        B, S, D = shape_of(sequence_output)
        with variables.scope(SQUAD_SCOPE) as head:
            rows = tf.reshape(sequence_output, [B * S, D])
            logits = project_to_classes(
                rows, head["output_weights"], head["output_bias"], policy=options.policy
            )
            start, end = tf.unstack(tf.reshape(logits, [B, S, 2]), axis=-1)
        return SpanLogits(start, end)

    def decisions(
        self, outputs: SpanLogits, features: Features, options: ForwardOptions
    ) -> Decisions:
        """The logits of first and of last positions, each with half the weight."""
        del options
        scores = _position_scores(outputs, features)
        S = shape_of(scores)[1]
        weights = tf.fill(tf.shape(scores)[:1], 0.5)
        return Decisions(ClassScores(scores, tf.zeros([S])), weights)

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of sequences."""
        return {POSITION: num_sequences(features)}

    def losses(
        self, outputs: SpanLogits, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The loss and accuracy of a batch.

        The loss of an example is the mean of the cross entropies of its two positions, as in
        google-research/bert, but only over positions with a token, so that padding has no effect.
        Each of the two positions counts half in loss and accuracy. ``start_positions`` and
        ``end_positions`` are [B, 1] or [B].
        """
        # Two targets per example, each with half the weight.
        scores = _position_scores(outputs, features)
        labels = tf.concat([features["start_positions"], features["end_positions"]], axis=0)
        labels = tf.reshape(labels, [-1])
        weights = tf.fill(tf.shape(labels), 0.5)
        return {POSITION: classification_sums(scores, labels, weights, policy=options.policy)}

    def predictions(
        self, outputs: SpanLogits, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """The fields of :class:`SpanCandidates`: the K best positions in every context.

        ``input_mask`` and ``segment_ids`` are [B, S]; the context is the second segment without its
        final [SEP].
        """
        del options
        k = min(self.num_candidates, self.config.max_position_embeddings)
        mask = features["input_mask"]
        _, S = shape_of(mask)
        last = tf.reduce_sum(mask, axis=-1, keepdims=True) - 1
        is_before_last = tf.cast(tf.range(S)[tf.newaxis] < last, mask.dtype)
        in_context = mask * features["segment_ids"] * is_before_last
        start_logits, start_indices = _best(outputs.start, in_context, k)
        end_logits, end_indices = _best(outputs.end, in_context, k)
        null_logits = outputs.start[:, 0] + outputs.end[:, 0]
        best = SpanCandidates(start_indices, start_logits, end_indices, end_logits, null_logits)
        return best._asdict()


def _best(scores: tf.Tensor, allowed: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The k highest allowed scores [B, S]: values and indices, [B, k] each."""
    # A constant, since tf2onnx multiplies other values by 0 where they are not chosen.
    scores = tf.where_v2(tf.cast(allowed, tf.bool), scores, tf.constant(-math.inf))
    # A sequence may have fewer than k positions.
    scores = tf.pad(scores, [[0, 0], [0, k]], constant_values=-math.inf)
    values, indices = tf.math.top_k(scores, k=k)
    return values, indices


def _position_scores(logits: SpanLogits, features: Features) -> tf.Tensor:
    """[2 * B, S] float32: logits of all first positions, then of all last ones.

    The logits of padding are so low that a softmax ignores them.
    """
    mask = tf.cast(tf.tile(features["input_mask"], [2, 1]), tf.float32)
    return tf.concat(logits, axis=0) + (1.0 - mask) * _PADDING_BIAS
