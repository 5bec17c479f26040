"""Whole forward passes by the parts of the graph that tasks put together, and their losses."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output
from bert_tf.model.losses import Sums
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.task import SpanTask


def pretraining_specs(config, **heads):
    """The variables of a network with these heads."""
    return PretrainingTask(config, **heads).specs()


def pretraining_outputs(variables, config, features, options, **heads):
    """The outputs of a network with these heads, from ``features`` of one micro batch."""
    encoded = bert_output(variables, config, features, options).sequence_output
    return PretrainingTask(config, **heads).head_outputs(encoded, variables, features, options)


class HeadSums(NamedTuple):
    """None for a missing head."""

    masked_lm: Sums | None
    next_sentence: Sums | None

    def total_loss(self) -> tf.Tensor:
        """Of both heads, not divided by any weight."""
        return self.masked_lm.loss + self.next_sentence.loss


def sums_of(outputs, config, features, options, **heads) -> HeadSums:
    """The sums of the heads from their outputs."""
    losses = PretrainingTask(config, **heads).losses(outputs, features, options)
    return HeadSums(losses.get("masked_lm"), losses.get("next_sentence"))


def sums_of_heads(variables, config, features, options, **heads) -> HeadSums:
    """The whole forward pass; ``heads`` as in :func:`pretraining_outputs`."""
    outputs = pretraining_outputs(variables, config, features, options, **heads)
    return sums_of(outputs, config, features, options, **heads)


def span_logits(variables, config, features, options):
    """The scores of starts and ends of answers."""
    return SpanTask(config).outputs(variables, features, options)
