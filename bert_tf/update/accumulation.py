"""Gradient accumulation: sums one rank's gradients for an update in one ``session.run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.ranks.ranks import Gradient

Gradients = list[tf.Tensor]


def gradients_of(
    objective: tf.Tensor, weights: Sequence[tf.Variable | tf.Tensor], names: Sequence[str]
) -> list[Gradient]:
    """The gradients of a float32 scalar with respect to ``weights``.

    Raises ValueError with the ``names`` of weights that the objective does not depend on.
    """
    gradients = tf.gradients(objective, list(weights))
    unused = [name for name, gradient in zip(names, gradients) if gradient is None]
    if unused:
        raise ValueError(f"the objective does not depend on {', '.join(unused)}")
    return gradients


def accumulate_gradients(
    micro_batch: Callable[[tf.Tensor], tuple[Gradients, tf.Tensor]],
    *,
    accumulation_steps: int | tf.Tensor,
    num_metrics: int,
    variables: Sequence[tf.Variable],
    add: Callable[[Gradients, Gradients], Gradients],
) -> tuple[Gradients, tf.Tensor]:
    """Sums gradients and metrics over the micro batches of one update.

    Args:
      micro_batch: maps a micro batch's index (int32 scalar) to its gradients, dense float32, one
        per variable, and its metrics (float32 [num_metrics]); both must be additive over micro
        batches.
      accumulation_steps: number of micro batches, an int32 scalar if it differs between updates; a
        single micro batch needs no loop.
      num_metrics: length of the metrics vector.
      variables: the variables that the gradients are for; they must already exist.
      add: returns the new sums from the current sums and a micro batch's gradients.

    Returns:
      The summed gradients and metrics.
    """
    if isinstance(accumulation_steps, int) and accumulation_steps == 1:
        return micro_batch(tf.constant(0))

    def body(index: tf.Tensor, sums: Gradients, metric_sums: tf.Tensor) -> tuple[object, ...]:
        gradients, metrics = micro_batch(index)
        return index + 1, add(sums, gradients), metric_sums + metrics

    _, sums, metric_sums = tf.while_loop(
        lambda index, *_: index < accumulation_steps,
        body,
        (
            tf.constant(0),
            [tf.zeros(variable.shape, tf.float32) for variable in variables],
            tf.zeros([num_metrics], tf.float32),
        ),
        # Micro batches run one at a time: in parallel they would use the memory that accumulation
        # is meant to save.
        parallel_iterations=1,
    )
    return list(sums), metric_sums
