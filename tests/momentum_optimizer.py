"""An optimizer that the toolkit does not have: all of the code that adding it takes, but its row.

Gradient descent with heavy-ball momentum (Polyak 1964), in TensorFlow's operations alone.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.config.optimizers import OptimizerRow, Option
from bert_tf.update.optimizers import Optimizer

ROW = OptimizerRow(
    title="momentum",
    implementation="tests.momentum_optimizer:Momentum",
    slots=("velocity",),
    options={"momentum": Option(0.9, flag="momentum", help_text="Share of the last velocity.")},
)


class Momentum(Optimizer):
    """``velocity = momentum * velocity + gradient; weight -= rate * velocity``."""

    registered_as = "momentum"

    def __init__(self, learning_rate, *, momentum=0.9, name="Momentum", **shared):
        super().__init__(learning_rate, name=name, **shared)
        self._momentum = momentum

    def update(self, parameters, learning_rate):
        steps = []
        for weight, [slot], gradient, decays in parameters:
            if decays:
                gradient += self.weight_decay * weight
            velocity = self._momentum * slot + gradient
            steps += [
                slot.assign(velocity, read_value=False),
                weight.assign_sub(learning_rate * velocity, read_value=False),
            ]
        return tf.group(*steps)
