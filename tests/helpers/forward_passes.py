"""Whole forward passes by the parts of the graph that tasks put together."""

from __future__ import annotations

from bert_tf.model.bert import bert_output
from bert_tf.tasks.pretraining.graph import pretraining_heads
from bert_tf.tasks.question_answering.task import SpanTask


def pretraining_outputs(
    variables, config, features, options, *, masked_lm=True, next_sentence=True
):
    """The outputs of a network with these heads, from ``features`` of one micro batch."""
    encoded = bert_output(variables, config, features, options).sequence_output
    positions = features["masked_lm_positions"] if masked_lm else None
    return pretraining_heads(
        encoded, positions, variables, config, options, next_sentence=next_sentence
    )


def span_logits(variables, config, features, options):
    """The scores of starts and ends of answers."""
    return SpanTask(config).outputs(variables, features, options)
