"""The LAMB optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.update.kernels import euclidean_norm
from bert_tf.update.optimizers.adam import AdamMoments
from bert_tf.update.optimizers.base import Parameter


class Lamb(AdamMoments):
    """Adam with decay and updates scaled to each variable's norm (You et al. 2020, algorithm 2).

    The decay is added before the norms are computed. A variable that does not decay, or whose norm
    or update is zero, has trust ratio 1. Further arguments are those of :class:`AdamMoments`.

    Args:
      learning_rate: scalar, a tensor or a number.
      bias_correction: as in :class:`AdamMoments`.
      min_trust_ratio: lower bound of the trust ratio, None for no bound.
      max_trust_ratio: upper bound of the trust ratio, None for no bound.
      name: prefix of operation names.
    """

    registered_as = "lamb"

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool = True,
        min_trust_ratio: float | None = None,
        max_trust_ratio: float | None = None,
        name: str = "Lamb",
        **shared: Any,
    ):
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **shared)
        self._min_trust_ratio = 0.0 if min_trust_ratio is None else min_trust_ratio
        self._max_trust_ratio = float("inf") if max_trust_ratio is None else max_trust_ratio

    def update(self, parameters: Sequence[Parameter], learning_rate: tf.Tensor) -> tf.Operation:
        """Algorithm 2, with each variable as a layer."""
        scale, epsilon = self.bias_corrections()
        steps = []
        for weight, (m_slot, v_slot), gradient, decays in parameters:
            m = m_slot * self.beta_1 + gradient * (1.0 - self.beta_1)
            v = v_slot * self.beta_2 + tf.square(gradient) * (1.0 - self.beta_2)
            direction = scale * m / (tf.sqrt(v) + epsilon)
            rate = learning_rate
            if decays:
                direction += self.weight_decay * weight
                rate *= self._trust_ratio(weight, direction)
            steps += [
                m_slot.assign(m, read_value=False),
                v_slot.assign(v, read_value=False),
                weight.assign_sub(rate * direction, read_value=False),
            ]
        return tf.group(*steps)

    def _trust_ratio(self, weight: tf.Variable, direction: tf.Tensor) -> tf.Tensor:
        weight_norm = euclidean_norm([tf.convert_to_tensor(weight)])
        ratio = tf.math.divide_no_nan(weight_norm, euclidean_norm([direction]))
        bounded = tf.clip_by_value(ratio, self._min_trust_ratio, self._max_trust_ratio)
        return tf.where_v2(ratio > 0.0, bounded, 1.0)

    def native_update(
        self,
        operations: ModuleType,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> tf.Operation:
        """Makes two passes over memory for all weights together, with the norms between them."""
        return operations.bert_tf_lamb(
            **self.native_arguments(parameters, learning_rate, gradient_factor),
            min_trust_ratio=self._min_trust_ratio,
            max_trust_ratio=self._max_trust_ratio,
        )
