"""Loss scaling: keeps float16 gradients from underflowing (Micikevicius et al. 2018, section 3.2).

Code for an update works with any :class:`LossScale`. The scale is constant within an update: it is
read once, and adjusted after the gradients have been checked.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.variables import create_count, create_state

# Names of a dynamic scale's variables in checkpoints: a float32 and an int64 scalar.
SCALE = "loss_scale/scale"
GOOD_UPDATES = "loss_scale/good_updates"

LARGEST = 2.0**32


class LossScale:
    """The factor by which the loss is multiplied before the backward pass.

    It is 1 for float32 and bfloat16; subclasses have other scales.
    """

    def current(self) -> tf.Tensor:
        """The scale of this update, a float32 scalar."""
        return tf.constant(1.0)

    def scale(self, loss: tf.Tensor) -> tf.Tensor:
        """The float32 ``loss`` times the scale."""
        return loss

    def inverse(self) -> tf.Tensor | None:
        """The factor that unscales gradients, a float32 scalar; None if no unscaling is needed."""
        return None

    def update(self, is_finite: tf.Tensor) -> tf.Operation:
        """Adjusts the saved state of the scale after an update.

        ``is_finite`` is a boolean scalar computed from the update's scaled or unscaled gradients.
        """
        del is_finite
        return tf.no_op()


class StaticLossScale(LossScale):
    """The same scale in every update; checkpoints contain no state for it."""

    def __init__(self, scale: float) -> None:
        """``scale`` must be positive; a power of two scales without rounding."""
        if not 0 < scale <= LARGEST:
            raise ValueError(f"loss scale {scale} is outside (0, {LARGEST}]")
        self._scale = scale

    def current(self) -> tf.Tensor:
        """The scale, a float32 scalar."""
        return tf.constant(self._scale, tf.float32)

    def scale(self, loss: tf.Tensor) -> tf.Tensor:
        """The float32 ``loss`` times the scale."""
        return loss * self._scale

    def inverse(self) -> tf.Tensor:
        """The factor that unscales gradients, a float32 scalar."""
        return tf.constant(1.0 / self._scale, tf.float32)


class DynamicLossScale(LossScale):
    """Halves the scale after an overflow and doubles it after ``period`` consecutive good updates.

    Its two variables are saved in checkpoints. If the initial scale is a power of two, so are all
    later ones, and scaling only changes exponents, without rounding. NVIDIA's scripts start at
    2**32. The scale stays between ``floor``, also if it was restored from a run with a lower one,
    and ``ceiling``, for networks whose gradients never overflow.
    """

    def __init__(
        self,
        initial: float = 2.0**16,
        *,
        period: int = 1000,
        floor: float = 1.0,
        ceiling: float = LARGEST,
    ):
        if not floor <= initial <= ceiling:
            raise ValueError(f"initial loss scale {initial} is outside [{floor}, {ceiling}]")
        if period < 1:
            raise ValueError(f"loss scale period {period} is not positive")
        self._period, self._floor, self._ceiling = period, floor, ceiling
        self._scale = create_state(SCALE, initial, tf.float32)
        self._good_updates = create_count(GOOD_UPDATES)
        # Read once; everything in an update depends on this read, so it precedes the assignment.
        self._current = tf.maximum(self._scale.read_value(), floor)

    def current(self) -> tf.Tensor:
        """The scale of this update, a float32 scalar."""
        return self._current

    def scale(self, loss: tf.Tensor) -> tf.Tensor:
        """The float32 ``loss`` times the scale."""
        return loss * self._current

    def inverse(self) -> tf.Tensor:
        """The factor that unscales gradients, a float32 scalar."""
        return 1.0 / self._current

    def update(self, is_finite: tf.Tensor) -> tf.Operation:
        """Adjusts the scale and the counter after an update."""
        with tf.control_dependencies([is_finite, self._current]):
            good_updates = self._good_updates.read_value() + 1
        period_is_over = good_updates >= self._period
        grown = tf.minimum(self._current * 2.0, self._ceiling)
        shrunk = tf.maximum(self._current * 0.5, self._floor)
        after_good = tf.where_v2(period_is_over, grown, self._current)
        restarts = tf.logical_or(tf.logical_not(is_finite), period_is_over)
        return tf.group(
            self._scale.assign(tf.where_v2(is_finite, after_good, shrunk)),
            self._good_updates.assign(
                tf.where_v2(restarts, tf.zeros_like(good_updates), good_updates)
            ),
            name="update_loss_scale",
        )
