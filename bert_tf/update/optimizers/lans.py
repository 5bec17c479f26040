"""LANS: LAMB with Nesterov momentum and normalised gradients (Zheng et al. 2020, algorithm 2).

Each variable's gradient is divided by its own norm before the moments are updated, so neither its
size nor clipping has an effect. A step is beta_1 times the momentum's direction plus 1 - beta_1
times the direction of the gradient alone, each with decay and its own trust ratio. The paper adapts
all variables, which corresponds to an empty ``exclude_from_layer_adaptation``; excluded variables
are normalised too.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from bert_tf.update.optimizers.adam import MOMENTS, SLOTS, corrects_bias
from bert_tf.update.optimizers.lamb import (
    LAYER_ADAPTATION,
    contradictory_adaptation,
    moments_and_layers,
)
from bert_tf.update.optimizers.row import Applied, Change, OptimizerRow, Parameter, UpdateContext
from bert_tf.util.options import Option
from bert_tf.util.tensorflow import tf


def lans(
    parameters: Sequence[Parameter], rate: tf.Tensor, context: UpdateContext, **options: Any
) -> list[Change]:
    """Algorithm 2, treating each variable as a block."""
    moments, layers = moments_and_layers(parameters, **options)
    scale, epsilon = moments.corrections(context)
    gradient_scale = tf.cast(moments.second_correction(context), tf.float32)
    norms = context.norms([parameter.gradient for parameter in parameters])
    values, directions = [], []
    for (_, variable, gradient, slots, decays), norm in zip(parameters, norms):
        gradient = tf.math.divide_no_nan(gradient, norm)
        m, v = moments.after(slots, gradient)
        root = tf.sqrt(v) + epsilon
        pair = [scale * m / root, gradient_scale * gradient / root]
        if decays:
            pair = [direction + context.weight_decay * variable for direction in pair]
        values.append((m, v))
        directions.append(pair)
    gain = 1.0 - moments.beta_1
    weights = [1.0 - gain, gain]
    ratios = layers.trust_ratios(list(zip(*directions)), context)
    changes = []
    for pair, slots, both, shown in zip(directions, values, zip(*ratios), layers.shown(ratios)):
        step = tf.add_n([weight * r * d for weight, r, d in zip(weights, both, pair)])
        changes.append(Change(rate * step, slots, shown))
    return changes


def fused_lans(
    operations: ModuleType,
    parameters: Sequence[Parameter],
    rate: tf.Tensor,
    factor: tf.Tensor | float,
    context: UpdateContext,
    **options: Any,
) -> Applied:
    """Updates all weights in three passes over memory, computing norms between them."""
    moments, layers = moments_and_layers(parameters, **options)
    gradients = [parameter.gradient for parameter in parameters]
    arguments = {
        **moments.native_arguments(parameters, rate, factor, context),
        "gradient_scale": tf.cast(moments.second_correction(context), tf.float32),
        "gradient_squares": context.sum_over_parts(context.sums_of_squares(gradients)),
    }
    squares = operations.bert_tf_lans_moments(**arguments)
    ratios = operations.bert_tf_lans_step(
        **arguments, **layers.native_arguments(), squares=context.sum_over_parts(squares)
    )
    return Applied(ratios.op, layers.shown_of_native(ratios))


ROW = OptimizerRow(
    title="LANS",
    rule=lans,
    fused_rule=fused_lans,
    slots=SLOTS,
    options={"bias_correction": Option(True), **MOMENTS, **LAYER_ADAPTATION},
    counts_updates=corrects_bias,
    ratio_kinds=("trust_ratio", "trust_ratio_of_gradient"),
    can_be_sharded=True,
    contradiction=contradictory_adaptation,
)
