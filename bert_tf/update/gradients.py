"""The gradients of an update, and the operations on them between accumulation and the optimizer.

To add an operation of your own, such as gradient noise, write a function from :class:`Gradients`
to :class:`Gradients` and call it in ``train_op.build_train_op``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import LossScale


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
