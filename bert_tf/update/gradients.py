"""The gradients of an update: accumulation, and the operations between it and the optimizer.

To add an operation of your own, such as gradient noise, write a function from :class:`Gradients`
to :class:`Gradients` and call it in ``train_op.build_train_op``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.ranks.ranks import Gradient
from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import LossScale

Tensors = list[tf.Tensor]


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
    micro_batch: Callable[[tf.Tensor], tuple[Tensors, tf.Tensor]],
    *,
    accumulation_steps: int | tf.Tensor,
    num_metrics: int,
    variables: Sequence[tf.Variable],
    add: Callable[[Tensors, Tensors], Tensors],
) -> tuple[Tensors, tf.Tensor]:
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
    """
    if isinstance(accumulation_steps, int) and accumulation_steps == 1:
        return micro_batch(tf.constant(0))

    def body(index: tf.Tensor, sums: Tensors, metric_sums: tf.Tensor) -> tuple[object, ...]:
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


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Summed gradients, with a factor that remains to be applied to them.

    An optimizer's native operations apply the factor while reading a gradient, which saves a pass
    over memory for each scaling.

    Attributes:
      variables: the trained variables.
      values: dense float32, one per variable, with its shape; if optimizer state is sharded, this
        rank's parts, as returned by ``Shards.sum_gradients``.
      values_norm: global norm of ``values`` before the factor is applied, a float32 scalar.
      factor: float32 scalar; None means 1.
    """

    variables: Sequence[tf.Variable]
    values: Sequence[tf.Tensor]
    values_norm: tf.Tensor
    factor: tf.Tensor | None = None

    @property
    def norm(self) -> tf.Tensor:
        """The global norm after the factor is applied, a float32 scalar."""
        return times(self.values_norm, self.factor)

    def scaled(self, factor: tf.Tensor | None) -> Gradients:
        """Multiplies the gradients by a float32 scalar; None means 1."""
        return dataclasses.replace(self, factor=times(self.factor, factor))

    def normalised(self) -> Gradients:
        """Scales the gradients to a global norm of 1, whatever the factor; zero stays zero."""
        return dataclasses.replace(self, factor=tf.math.divide_no_nan(1.0, self.values_norm))

    def tensors(self) -> list[tf.Tensor]:
        """The gradients, with the factor applied."""
        return [times(value, self.factor) for value in self.values]


def unscaled(gradients: Gradients, loss_scale: LossScale) -> Gradients:
    """Converts gradients of the scaled loss to gradients of the loss."""
    return gradients.scaled(loss_scale.inverse())


def are_finite(gradients: Gradients) -> tf.Tensor:
    """Whether the gradients are finite and the update can be applied, a boolean scalar.

    Even if the gradients are finite, the second moment may overflow or the factor may be NaN.
    """
    is_finite = tf.is_finite(tf.square(gradients.values_norm))
    return is_finite if gradients.factor is None else is_finite & tf.is_finite(gradients.norm)


def clipped(gradients: Gradients, clip_norm: float | None) -> Gradients:
    """Clips gradients to a global norm of ``clip_norm`` (Pascanu et al. 2013); None does not clip.

    ``clip_norm`` must be positive (infinity clips nothing), and the gradients must be finite.
    """
    if clip_norm is None:
        return gradients
    return gradients.scaled(clip_factor(gradients.norm, clip_norm))


def clip_factor(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """The factor that scales a finite global norm down to ``clip_norm``, a float32 scalar.

    Exactly 1 if no clipping is needed.
    """
    return tf.minimum(1.0, clip_norm / norm)
