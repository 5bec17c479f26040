"""Whole forward passes by the parts of the graph that tasks put together."""

from __future__ import annotations

from bert_tf.model.bert import bert_output
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.task import span_head


def pretraining_specs(config, **heads):
    """The variables of a network with these heads."""
    return PretrainingTask(config, **heads).specs()


def pretraining_outputs(variables, config, features, options, **heads):
    """The outputs of a network with these heads, from ``features`` of one micro batch."""
    encoded = bert_output(variables, config, features, options).sequence_output
    return PretrainingTask(config, **heads).head_outputs(encoded, variables, features, options)


def span_logits(variables, config, features, options):
    """The scores of starts and ends of answers."""
    encoded = bert_output(variables, config, features, options).sequence_output
    return span_head(encoded, variables, options)
