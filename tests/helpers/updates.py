"""Updates by an optimizer alone, without a network."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_tf.update.gradients import Gradients
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.optimizers.row import Applied


def applied(
    optimizer: Optimizer,
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]],
    factor: tf.Tensor | None = None,
) -> Applied:
    """Updates variables with ``factor`` times their gradients, but for those that are frozen."""
    trained = [(g, v) for g, v in pairs if optimizer.trained([v])]
    values, variables = (list(part) for part in zip(*trained))
    optimizer.create_slots(variables)
    norm = optimizer.global_norm(values, variables)
    return optimizer.apply(Gradients(variables, values, norm, factor))


def apply_gradients(
    optimizer: Optimizer,
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]],
    factor: tf.Tensor | None = None,
) -> tf.Operation:
    """The operation of :func:`applied`."""
    return applied(optimizer, pairs, factor).operation
