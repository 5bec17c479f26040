"""The gradients of an update, and what happens to them between their sum and the optimizer's rule.

To add a step of its own, such as noise, write a function from :class:`Gradients` to
:class:`Gradients` and a line in ``train_op.build_train_op``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import LossScale


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Summed gradients and a factor that they are still to be multiplied by.

    An optimizer's native operations apply the factor as they read a gradient, which saves a pass
    over memory for each step that only scales.

    Attributes:
      variables: the trained variables.
      values: dense float32, one for each variable, of its shape; where ranks share the optimizer's
        state, this rank's parts, as from ``Shards.sum_gradients``.
      values_norm: their global norm without the factor, a float32 scalar.
      factor: float32 scalar, None for 1.
    """

    variables: Sequence[tf.Variable]
    values: Sequence[tf.Tensor]
    values_norm: tf.Tensor
    factor: tf.Tensor | None = None

    @property
    def norm(self) -> tf.Tensor:
        """The global norm with the factor, a float32 scalar."""
        return times(self.values_norm, self.factor)

    def scaled(self, factor: tf.Tensor | None) -> Gradients:
        """These gradients times a float32 scalar, None for 1."""
        return dataclasses.replace(self, factor=times(self.factor, factor))

    def normalised(self) -> Gradients:
        """These gradients with a global norm of 1, whatever the factor is; zero stays zero."""
        return dataclasses.replace(self, factor=tf.math.divide_no_nan(1.0, self.values_norm))

    def tensors(self) -> list[tf.Tensor]:
        """The gradients, with the factor."""
        return [times(value, self.factor) for value in self.values]


def unscaled(gradients: Gradients, loss_scale: LossScale) -> Gradients:
    """The gradients of the loss, from those of the scaled loss."""
    return gradients.scaled(loss_scale.inverse())


def are_finite(gradients: Gradients) -> tf.Tensor:
    """Whether an update can be applied, a boolean scalar.

    Even with finite gradients the second moment may overflow, or the factor be NaN.
    """
    is_finite = tf.is_finite(tf.square(gradients.values_norm))
    return is_finite if gradients.factor is None else is_finite & tf.is_finite(gradients.norm)


def clipped(gradients: Gradients, clip_norm: float | None) -> Gradients:
    """The gradients with a global norm of at most ``clip_norm`` (Pascanu et al. 2013); None: all.

    ``clip_norm`` is positive; infinity clips nothing. The gradients must be finite.
    """
    if clip_norm is None:
        return gradients
    return gradients.scaled(clip_factor(gradients.norm, clip_norm))


def clip_factor(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """The factor that limits a finite global norm to ``clip_norm``, a float32 scalar.

    Exactly 1 if there is nothing to clip.
    """
    return tf.minimum(1.0, clip_norm / norm)
