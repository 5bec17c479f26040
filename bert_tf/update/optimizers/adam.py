"""AdamW, and the base class of optimizers built on Adam's moments."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.update.optimizers.base import Optimizer, Parameter


class AdamMoments(Optimizer):
    """An optimizer with Adam's direction; its slots are the two moments.

    Further arguments are those of :class:`Optimizer`.

    Args:
      learning_rate: scalar, a tensor or a number.
      bias_correction: divide the moments by ``1 - beta**t``, with t = 1 in the first update.
      beta_1: decay rate of the mean of gradients.
      beta_2: decay rate of the mean of squared gradients.
      epsilon: added to the square root of the second moment.
    """

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        **shared: Any,
    ):
        super().__init__(learning_rate, counts_updates=bias_correction, **shared)
        # The graph only has 1 - beta, rounded after the subtraction: off by 6e-8 at most. 1 minus
        # the float32 number next to 0.999 is off by 1.3e-5.
        self.gain_1, self.gain_2 = 1.0 - beta_1, 1.0 - beta_2
        self._epsilon = epsilon

    def bias_corrections(self) -> tuple[tf.Tensor, tf.Tensor]:
        """``scale`` and ``epsilon`` of Adam's direction ``scale * m / (sqrt(v) + epsilon)``.

        With bias correction the direction is m / (1 - beta_1**t) divided by
        sqrt(v / (1 - beta_2**t)) + epsilon; here the corrections are applied to the scalars instead
        of the tensors.
        """
        if self.update_count is None:
            return tf.constant(1.0), tf.constant(self._epsilon)
        root = self.second_correction()
        scale = root / self._correction(self.gain_1)
        return tf.cast(scale, tf.float32), tf.cast(root * self._epsilon, tf.float32)

    def second_correction(self) -> tf.Tensor:
        """``sqrt(1 - beta_2**t)``, a float64 scalar; 1 without bias correction."""
        if self.update_count is None:
            return tf.constant(1.0, tf.float64)
        return tf.sqrt(self._correction(self.gain_2))

    def _correction(self, gain: float) -> tf.Tensor:
        # float64: in float32 the first 1 - beta_2**t would have a relative error of 6e-5.
        number = tf.cast(self.update_count.read_value() + 1, tf.float64)
        return 1.0 - tf.pow(tf.constant(1.0 - gain, tf.float64), number)

    def next_moments(
        self, parameter: Parameter, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The moments with one more gradient, not yet assigned to the slots."""
        m, v = parameter.slots
        return (
            m + (gradient - m) * self.gain_1,
            v + (tf.square(gradient) - v) * self.gain_2,
        )

    def native_arguments(
        self,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> dict[str, object]:
        """The arguments that the native operations of AdamW and LAMB share."""
        scale, epsilon = self.bias_corrections()
        return {
            "weights": [parameter.variable.handle for parameter in parameters],
            "first_moments": [parameter.slots[0].handle for parameter in parameters],
            "second_moments": [parameter.slots[1].handle for parameter in parameters],
            "gradients": [parameter.gradient for parameter in parameters],
            "decays": [parameter.decays for parameter in parameters],
            "factor": gradient_factor,
            "learning_rate": learning_rate,
            "scale": scale,
            "epsilon": epsilon,
            "gain_1": self.gain_1,
            "gain_2": self.gain_2,
            "weight_decay": self.weight_decay,
        }


class AdamW(AdamMoments):
    """Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019).

    The defaults are BERT's: no bias correction, decay by ``learning_rate * weight_decay``. Further
    arguments are those of :class:`AdamMoments`.
    """

    registered_as = "adam"

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool = False,
        name: str = "AdamW",
        **shared: Any,
    ):
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **shared)

    def update(self, parameters: Sequence[Parameter], learning_rate: tf.Tensor) -> tf.Operation:
        """Adam's step, and the decay."""
        scale, epsilon = self.bias_corrections()
        rate = learning_rate * scale
        steps = []
        for parameter in parameters:
            weight, (m_slot, v_slot), gradient, decays = parameter
            # Not ResourceApplyAdam: it subtracts from 1 a beta that was rounded to float32.
            m, v = self.next_moments(parameter, gradient)
            change = rate * m / (tf.sqrt(v) + epsilon)
            if self.weight_decay and decays:
                change += learning_rate * self.weight_decay * weight
            steps += [
                m_slot.assign(m, read_value=False),
                v_slot.assign(v, read_value=False),
                weight.assign_sub(change, read_value=False),
            ]
        return tf.group(*steps)

    def native_update(
        self,
        operations: ModuleType,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> tf.Operation:
        """Makes one pass over memory for all weights together."""
        return operations.bert_tf_adam_w(
            **self.native_arguments(parameters, learning_rate, gradient_factor)
        )
