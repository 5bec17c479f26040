"""The pre-training task: masked LM and next sentences (Devlin et al. 2019, section 3.1).

Sentence pairs may be labelled with their order instead (Lan et al. 2020, section 3.1): the same
head then predicts whether they are swapped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_specs, pooled_output
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.flops import training_flops
from bert_tf.model.heads import (
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    Head,
    masked_lm_scores,
    masked_lm_specs,
    next_sentence_logits,
    next_sentence_specs,
)
from bert_tf.model.layers import shape_of
from bert_tf.model.losses import (
    ACCURACY,
    ClassScores,
    Decisions,
    Sums,
    Terms,
    classification_sums,
    means,
    score_sums,
)
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import EncoderTask, Features, Task, num_sequences
from bert_tf.model.token_rows import mask_of_positions
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.records.info import NEXT_SENTENCE, SENTENCE_ORDER

MASKED_LM = "masked_lm"


class PretrainingOutputs(NamedTuple):
    """The outputs of the heads; None for a head that is not used.

    Attributes:
      masked_lm: vocabulary logits at the masked positions, [B * P, V].
      next_sentence: [B, 2] float32 logits.
    """

    masked_lm: ClassScores | None
    next_sentence: tf.Tensor | None

    @property
    def words(self) -> ClassScores:
        """``masked_lm``; raises ValueError if that head is left out."""
        if self.masked_lm is None:
            raise ValueError("the network has no head for masked words")
        return self.masked_lm


def masked_lm_logits(scores: ClassScores, options: ForwardOptions) -> tf.Tensor:
    """The vocabulary logits, [B * P, V] float32."""
    with tf.name_scope("cls/predictions"):
        return scores.logits(options.policy)


@dataclasses.dataclass(frozen=True)
class PretrainingTask(EncoderTask):
    """Masked LM and next-sentence prediction; either can be left out.

    Implements :class:`bert_tf.tasks.distillation.task.DistilledTask`.

    Attributes:
      config: the network's configuration.
      masked_lm, next_sentence: which heads are used.
      sentence_order: the labels of ``next_sentence`` are for sentence order; this only changes
        the names of metrics.
      score_all_tokens: predict words at all positions rather than only at masked ones, so that
        two networks can be compared everywhere.
      whole_scores: compute a micro batch's vocabulary logits at once, as not only losses read them.
    """

    config: BertConfig
    masked_lm: bool = True
    next_sentence: bool = True
    score_all_tokens: bool = False
    sentence_order: bool = False
    whole_scores: bool = False

    loss_name: ClassVar = "cross_entropy"

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads that are trained."""
        present = {MASKED_LM_HEAD: self.masked_lm, NEXT_SENTENCE_HEAD: self.next_sentence}
        return tuple(head for head, is_present in present.items() if is_present)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features of sequences and, for the masked LM, the positions of masked tokens."""
        return (*INPUTS, "masked_lm_positions") if self.masked_lm else INPUTS

    @property
    def terms(self) -> Terms:
        """One loss term per head."""
        present = {MASKED_LM: self.masked_lm, self._pair_term: self.next_sentence}
        return {term: (ACCURACY,) for term, is_present in present.items() if is_present}

    @property
    def num_classes(self) -> int:
        """The size of the vocabulary."""
        return self.config.vocab_size

    def specs(self) -> list[VariableSpec]:
        """The variables that the heads train, and no others."""
        specs = bert_specs(self.config, pooler=self.next_sentence)
        if self.masked_lm:
            specs += masked_lm_specs(self.config)
        if self.next_sentence:
            specs += next_sentence_specs(self.config)
        return specs

    def positions_read(self, features: Features) -> tf.Tensor | None:
        """The masked positions, and that of [CLS] for next sentences."""
        if self.score_all_tokens:
            return None
        mask = features["input_mask"]
        parts = [features["masked_lm_positions"]] if self.masked_lm else []
        if self.next_sentence:
            parts.append(tf.zeros_like(mask[:, :1]))
        return mask_of_positions(mask, *parts)

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> PretrainingOutputs:
        """The vocabulary logits and the next-sentence logits, from the encoder's output."""
        words = sentences = None
        if self.masked_lm:
            positions = features["masked_lm_positions"]
            if self.score_all_tokens:
                B, S, _ = shape_of(sequence_output)
                positions = tf.tile(tf.range(S, dtype=positions.dtype)[tf.newaxis], [B, 1])
            words = masked_lm_scores(
                sequence_output, positions, variables, config=self.config, policy=options.policy
            )
        if self.next_sentence:
            pooled = pooled_output(sequence_output, variables, policy=options.policy)
            sentences = next_sentence_logits(pooled, variables, policy=options.policy)
        return PretrainingOutputs(words, sentences)

    def decisions(
        self, outputs: PretrainingOutputs, features: Features, options: ForwardOptions
    ) -> Decisions:
        """The vocabulary logits at every masked position, or at every token."""
        del options
        mask = features["input_mask" if self.score_all_tokens else "masked_lm_weights"]
        weights = tf.cast(tf.reshape(mask, [-1]), tf.float32)
        return Decisions(outputs.words, weights)

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of masked tokens and the number of sequences."""
        weights = {}
        if self.masked_lm:
            weights[MASKED_LM] = tf.reduce_sum(features["masked_lm_weights"])
        if self.next_sentence:
            weights[self._pair_term] = num_sequences(features)
        return weights

    def losses(
        self, outputs: PretrainingOutputs, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The cross entropies of masked tokens and of next sentences.

        A weight of 0 in the optional ``example_weights`` [B] float32 excludes a sequence.
        """
        losses = {}
        if self.masked_lm:
            losses[MASKED_LM] = self._masked_sums(outputs, features, options)
        if self.next_sentence:
            labels = tf.reshape(features["next_sentence_labels"], [-1])
            weights = features.get("example_weights", tf.ones_like(labels, tf.float32))
            with tf.name_scope("cls/seq_relationship/loss"):
                losses[self._pair_term] = classification_sums(
                    outputs.next_sentence, labels, weights, policy=options.policy
                )
        return losses

    def predictions(
        self, outputs: PretrainingOutputs, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``masked_lm_probabilities`` [B, P, V], ``next_sentence_logits`` [B, 2], float32."""
        predictions = {}
        if self.masked_lm:
            words = self._masked_scores(outputs, features)
            probabilities = tf.nn.softmax(masked_lm_logits(words, options))
            shape = [*tf.unstack(tf.shape(features["masked_lm_positions"])), self.config.vocab_size]
            predictions["masked_lm_probabilities"] = tf.reshape(probabilities, shape)
        if self.next_sentence:
            predictions["next_sentence_logits"] = outputs.next_sentence
        return predictions

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """The perplexity of masked tokens."""
        if not self.masked_lm:
            return {}
        try:
            perplexity = math.exp(means(sums)[MASKED_LM]["loss"])
        except OverflowError:
            perplexity = math.inf
        return {f"{MASKED_LM}_perplexity": perplexity}

    def training_flops(self, *, length: int, predictions: int) -> float:
        """FLOPs of training on one sequence with ``predictions`` masks (see ``model.flops``)."""
        return training_flops(
            self.config,
            length=length,
            predictions=predictions if self.masked_lm else 0,
            next_sentence=self.next_sentence,
        )

    def ledger(self) -> Mapping[str, Mapping[str, Any]]:
        """Empty: the ledger describes the network anyway."""
        return {}

    @property
    def _pair_term(self) -> str:
        return SENTENCE_ORDER if self.sentence_order else NEXT_SENTENCE

    def _masked_sums(
        self, outputs: PretrainingOutputs, features: Features, options: ForwardOptions
    ) -> Sums:
        words = self._masked_scores(outputs, features)
        with tf.name_scope("cls/predictions/loss"):
            return score_sums(
                words,
                tf.reshape(features["masked_lm_ids"], [-1]),
                tf.reshape(features["masked_lm_weights"], [-1]),
                options=options,
            )

    def _masked_scores(self, outputs: PretrainingOutputs, features: Features) -> ClassScores:
        """The vocabulary logits at the masked positions, [B * P, V]."""
        if not self.score_all_tokens:
            return outputs.words._replace(factors=None) if self.whole_scores else outputs.words
        positions = features["masked_lm_positions"]
        B, S = shape_of(features["input_mask"])
        rows = tf.range(B, dtype=positions.dtype)[:, tf.newaxis] * S + positions
        return outputs.words.rows(tf.reshape(rows, [-1]))


class ObjectiveTask(Task, Protocol):
    """The task of a pre-training objective; the rest of a run depends on no more than this."""

    def training_flops(self, *, length: int, predictions: int) -> float:
        """FLOPs of training on one sequence with ``predictions`` masks (see ``model.flops``)."""

    def ledger(self) -> Mapping[str, Mapping[str, Any]]:
        """Additional sections of the run's ledger."""
