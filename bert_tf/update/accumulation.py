"""Gradients of one update on one rank, micro batch by micro batch, in one ``session.run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

Gradients = list[tf.Tensor]


def accumulate_gradients(
    micro_batch: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    *,
    accumulation_steps: int,
    num_metrics: int,
    variables: Sequence[tf.Variable],
    reduce: Callable[[Gradients], Gradients],
    add: Callable[[Gradients, Gradients], Gradients],
) -> tuple[Gradients, tf.Tensor]:
    """Sums gradients and metrics over the micro batches of an update.

    Args:
      micro_batch: from the micro batch's number (int32 scalar) to its objective (float32 scalar)
        and its metrics (float32 [num_metrics]), which may be added up over micro batches.
      accumulation_steps: number of micro batches; one needs no loop.
      num_metrics: length of the metrics' vector.
      variables: what to differentiate by; they must exist already.
      reduce: applied to each micro batch's gradients before they are added; some come as
        tf.IndexedSlices, all must be dense afterwards. Communicating here, and not once on the sum,
        is what the delay of communication is compared with.
      add: the sums so far and a micro batch's reduced gradients to the new sums.

    Returns:
      float32 dense gradients, one a variable, and the summed metrics.
    """

    def gradients_of(index: tf.Tensor) -> tuple[Gradients, tf.Tensor]:
        objective, metrics = micro_batch(index)
        gradients = tf.gradients(objective, list(variables))
        unused = [v.name for v, gradient in zip(variables, gradients) if gradient is None]
        if unused:
            raise ValueError(f"the objective does not depend on {', '.join(unused)}")
        return reduce(gradients), metrics

    if accumulation_steps == 1:
        return gradients_of(tf.constant(0))

    def body(index, sums, metric_sums):
        gradients, metrics = gradients_of(index)
        return index + 1, add(sums, gradients), metric_sums + metrics

    _, sums, metric_sums = tf.while_loop(
        lambda index, *_: index < accumulation_steps,
        body,
        (
            tf.constant(0),
            [tf.zeros(variable.shape, tf.float32) for variable in variables],
            tf.zeros([num_metrics], tf.float32),
        ),
        # Micro batches one after the other: running them side by side would cost the memory that
        # accumulation is there to save.
        parallel_iterations=1,
    )
    return list(sums), metric_sums
