"""Loss scaling: keeps float16 gradients from underflowing (Micikevicius et al. 2018, section 3.2).

Both classes have the same methods, so an update is written only once. The scale is constant within
an update: it is read once, and changed after the gradients have been checked.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.update.state import create_count, create_state


class NoLossScale:
    """No scaling: for float32 and bfloat16."""

    def current(self) -> tf.Tensor:
        """The scale of this update, a float32 scalar: always 1."""
        return tf.constant(1.0)

    def scale(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns ``loss`` unchanged."""
        return loss

    def inverse(self) -> tf.Tensor | None:
        """The factor that unscales gradients: None, as there is nothing to undo."""
        return None

    def update(self, is_finite: tf.Tensor) -> tf.Operation:
        """Does nothing."""
        del is_finite
        return tf.no_op()


class DynamicLossScale:
    """Halves the scale after an update that overflowed, doubles it after ``period`` good ones.

    Its two variables are saved in checkpoints. If the initial scale is a power of two, so are all
    later ones, and scaling only changes exponents, without rounding.

    Args:
      initial: the initial scale; NVIDIA's scripts start at 2**32.
      period: consecutive good updates before the scale is doubled.
      floor: smallest scale.
      ceiling: largest scale, for a network whose gradients never overflow.
    """

    def __init__(
        self,
        initial: float = 2.0**16,
        *,
        period: int = 1000,
        floor: float = 1.0,
        ceiling: float = 2.0**32,
    ):
        if not floor <= initial <= ceiling:
            raise ValueError(f"initial loss scale {initial} is outside [{floor}, {ceiling}]")
        if period < 1:
            raise ValueError(f"loss scale period {period} is not positive")
        self._period, self._floor, self._ceiling = period, floor, ceiling
        self._scale = create_state("loss_scale/scale", initial, tf.float32)
        self._good_updates = create_count("loss_scale/good_updates")
        # A single read, which everything in an update depends on, so it precedes the assignment.
        self._current = self._scale.read_value()

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
        """Adjusts scale and counter after an update.

        Args:
          is_finite: boolean scalar computed from this update's scaled or unscaled gradients.
        """
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
