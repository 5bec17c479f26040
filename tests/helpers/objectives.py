"""Gradients of objectives, as accumulation takes them."""

from bert_tf.ranks.ranks import as_tables
from bert_tf.update.gradients import gradients_of


def differentiated(micro_batch, variables, *, reduce=as_tables):
    """From a function that returns an objective and metrics to one that returns gradients."""
    names = [variable.op.name for variable in variables]

    def gradients(index):
        objective, metrics = micro_batch(index)
        return reduce(gradients_of(objective, variables, names)), metrics

    return gradients
