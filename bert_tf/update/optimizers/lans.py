"""The LANS optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.update.optimizers.base import Parameter
from bert_tf.update.optimizers.lamb import LayerwiseMoments


class Lans(LayerwiseMoments):
    """LAMB with Nesterov's momentum and normalised gradients (Zheng et al. 2020, algorithm 2).

    The gradient of each variable is divided by its own norm before the moments, so neither its size
    nor clipping has an effect. A step is beta_1 times the direction of the momentum plus 1 - beta_1
    times that of the gradient alone, each with decay and with its own trust ratio. The paper adapts
    all variables, which is an empty ``exclude_from_layer_adaptation``; normalisation applies to the
    excluded ones too. Further arguments are those of :class:`LayerwiseMoments`.
    """

    registered_as = "lans"
    ratio_kinds: ClassVar[tuple[str, ...]] = ("trust_ratio", "trust_ratio_of_gradient")

    def __init__(self, learning_rate: tf.Tensor | float, *, name: str = "Lans", **shared: Any):
        super().__init__(learning_rate, name=name, **shared)

    def update(self, parameters: Sequence[Parameter], learning_rate: tf.Tensor) -> tf.Operation:
        """Algorithm 2, with each variable as a block."""
        scale, epsilon = self.bias_corrections()
        gradient_scale = tf.cast(self.second_correction(), tf.float32)
        norms = self.norms([parameter.gradient for parameter in parameters])
        steps, directions = [], []
        for parameter, norm in zip(parameters, norms):
            weight, (m_slot, v_slot), gradient, decays = parameter
            gradient = tf.math.divide_no_nan(gradient, norm)
            m, v = self.next_moments(parameter, gradient)
            root = tf.sqrt(v) + epsilon
            pair = [scale * m / root, gradient_scale * gradient / root]
            if decays:
                pair = [direction + self.weight_decay * weight for direction in pair]
            directions.append(pair)
            steps += [m_slot.assign(m, read_value=False), v_slot.assign(v, read_value=False)]
        shares = [1.0 - self.gain_1, self.gain_1]
        ratios = self.ratios_of(parameters, *zip(*directions))
        for parameter, pair, both in zip(parameters, directions, zip(*ratios)):
            step = tf.add_n([share * r * d for share, r, d in zip(shares, both, pair)])
            change = learning_rate * step
            steps.append(parameter.variable.assign_sub(change, read_value=False))
        self.keep_ratios(parameters, tf.stack(ratios))
        return tf.group(*steps)

    def native_update(
        self,
        operations: ModuleType,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> tf.Operation:
        """Makes three passes over memory for all weights together, with norms between them."""
        gradients = [parameter.gradient for parameter in parameters]
        arguments = {
            **self.native_arguments(parameters, learning_rate, gradient_factor),
            "gradient_scale": tf.cast(self.second_correction(), tf.float32),
            "gradient_squares": self.sum_over_parts(self.kernels.sums_of_squares(gradients)),
        }
        squares = operations.bert_tf_lans_moments(**arguments)
        ratios = operations.bert_tf_lans_step(
            **arguments, **self.native_bounds(parameters), squares=self.sum_over_parts(squares)
        )
        self.keep_ratios(parameters, ratios)
        return ratios.op
