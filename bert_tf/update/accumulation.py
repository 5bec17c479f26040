"""Gradient accumulation: sums one rank's gradients for an update in one ``session.run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

Gradients = list[tf.Tensor]


def accumulate_gradients(
    micro_batch: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    *,
    accumulation_steps: int | tf.Tensor,
    num_metrics: int,
    variables: Sequence[tf.Variable],
    reduce: Callable[[Gradients], Gradients],
    add: Callable[[Gradients, Gradients], Gradients],
) -> tuple[Gradients, tf.Tensor]:
    """Sums gradients and metrics over the micro batches of one update.

    Args:
      micro_batch: maps a micro batch's index (int32 scalar) to its objective (float32 scalar) and
        its metrics (float32 [num_metrics]), which must be additive over micro batches.
      accumulation_steps: number of micro batches, an int32 scalar if it differs between updates; a
        single micro batch needs no loop.
      num_metrics: length of the metrics vector.
      variables: variables to differentiate with respect to; they must already exist.
      reduce: applied to each micro batch's gradients before they are added; its inputs may be
        tf.IndexedSlices, its outputs must be dense. Communicating here, rather than once on the
        sum, is the baseline for measuring delayed communication.
      add: returns the new sums from the current sums and a micro batch's reduced gradients.

    Returns:
      Dense float32 gradients, one per variable, and the summed metrics.
    """

    def micro_batch_gradients(index: tf.Tensor) -> tuple[Gradients, tf.Tensor]:
        objective, metrics = micro_batch(index)
        gradients = tf.gradients(objective, list(variables))
        unused = [v.name for v, gradient in zip(variables, gradients) if gradient is None]
        if unused:
            raise ValueError(f"the objective does not depend on {', '.join(unused)}")
        return reduce(gradients), metrics

    if isinstance(accumulation_steps, int) and accumulation_steps == 1:
        return micro_batch_gradients(tf.constant(0))

    def body(index: tf.Tensor, sums: Gradients, metric_sums: tf.Tensor) -> tuple[object, ...]:
        gradients, metrics = micro_batch_gradients(index)
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
