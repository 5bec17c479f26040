"""An optimizer that the toolkit does not have: all of the code that adding it takes.

Gradient descent with heavy-ball momentum (Polyak 1964), in TensorFlow's operations alone.
"""

from __future__ import annotations

from bert_tf.update.optimizers.row import Change, OptimizerRow
from bert_tf.util.options import Interval, Option


def momentum_rule(parameters, rate, context, *, momentum):
    """``velocity = momentum * velocity + gradient; weight -= rate * velocity``."""
    changes = []
    for _, weight, gradient, [velocity], decays in parameters:
        if decays:
            gradient += context.weight_decay * weight
        velocity = momentum * velocity + gradient
        changes.append(Change(rate * velocity, (velocity,)))
    return changes


ROW = OptimizerRow(
    title="momentum",
    rule=momentum_rule,
    slots=("velocity",),
    options={
        "momentum": Option(
            0.9, "momentum", "Share of the last velocity.", bounds=Interval(0, 1, open_high=True)
        )
    },
)
