"""AdamW: Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019).

The defaults are BERT's: no bias correction, decay by ``learning_rate * weight_decay``. Other
optimizers reuse its moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from bert_tf.update.optimizers.row import Applied, Change, OptimizerRow, Parameter, UpdateContext
from bert_tf.util.options import Interval, Option, Options
from bert_tf.util.tensorflow import tf

# Added to the square root of the second moment.
EPSILON = 1e-6
SLOTS = ("adam_m", "adam_v")
# Any closer to 1, and 1 - beta has too few significant digits in float32.
_BETAS = Interval(0, 0.999999)

MOMENTS = {
    "beta_1": Option(
        0.9, flag="adam_beta1", help_text="Decay rate of the mean of gradients.", bounds=_BETAS
    ),
    "beta_2": Option(
        0.999, flag="adam_beta2", help_text="Decay rate of mean squared gradients.", bounds=_BETAS
    ),
}
BIAS_CORRECTION = Option(
    False,
    flag="adam_bias_correction",
    help_text="Adam with bias correction (google-research/bert has none).",
)


def corrects_bias(options: Options) -> bool:
    """Whether moments are divided by ``1 - beta**t``, with t = 1 in the first update."""
    return bool(options["bias_correction"])


class Moments(NamedTuple):
    """The options of Adam's two moments, which AdamW, LAMB and LANS have."""

    bias_correction: bool
    beta_1: float
    beta_2: float

    def after(
        self, slots: Sequence[tf.Variable], gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The two moments after one more gradient."""
        m, v = slots
        # The graph contains only 1 - beta, rounded after the subtraction: the error is at most
        # 6e-8. Subtracting the float32 value closest to 0.999 from 1 has an error of 1.3e-5.
        next_m = m + (gradient - m) * (1.0 - self.beta_1)
        return next_m, v + (tf.square(gradient) - v) * (1.0 - self.beta_2)

    def corrections(self, context: UpdateContext) -> tuple[tf.Tensor, tf.Tensor]:
        """``scale`` and ``epsilon`` of the direction ``scale * m / (sqrt(v) + epsilon)``, float32.

        With bias correction the direction is m / (1 - beta_1**t) divided by
        sqrt(v / (1 - beta_2**t)) + epsilon; here the corrections are applied to the scalars instead
        of the tensors.
        """
        if not self.bias_correction:
            return tf.constant(1.0), tf.constant(EPSILON)
        root = self.second_correction(context)
        scale = root / _correction(context, self.beta_1)
        return tf.cast(scale, tf.float32), tf.cast(root * EPSILON, tf.float32)

    def second_correction(self, context: UpdateContext) -> tf.Tensor:
        """``sqrt(1 - beta_2**t)``, a float64 scalar; 1 without bias correction."""
        if not self.bias_correction:
            return tf.constant(1.0, tf.float64)
        return tf.sqrt(_correction(context, self.beta_2))

    def native_arguments(
        self,
        parameters: Sequence[Parameter],
        rate: tf.Tensor,
        factor: tf.Tensor | float,
        context: UpdateContext,
    ) -> dict[str, object]:
        """The arguments shared by the native operations of AdamW, LAMB and LANS."""
        scale, epsilon = self.corrections(context)
        return {
            "weights": [parameter.variable.handle for parameter in parameters],
            "first_moments": [parameter.slots[0].handle for parameter in parameters],
            "second_moments": [parameter.slots[1].handle for parameter in parameters],
            "gradients": [parameter.gradient for parameter in parameters],
            "decays": [parameter.decays for parameter in parameters],
            "factor": factor,
            "learning_rate": rate,
            "scale": scale,
            "epsilon": epsilon,
            "gain_1": 1.0 - self.beta_1,
            "gain_2": 1.0 - self.beta_2,
            "weight_decay": context.weight_decay,
        }


def _correction(context: UpdateContext, beta: float) -> tf.Tensor:
    # float64: in float32 the first 1 - beta_2**t would have a relative error of 6e-5. The moments
    # use the rounded 1 - beta, so their correction must use the same value.
    gain = 1.0 - beta
    return 1.0 - tf.pow(tf.constant(1.0 - gain, tf.float64), context.update_number)


def adam_w(
    parameters: Sequence[Parameter], rate: tf.Tensor, context: UpdateContext, **options: Any
) -> list[Change]:
    """Adam's step plus weight decay."""
    moments = Moments(**options)
    scale, epsilon = moments.corrections(context)
    corrected_rate = rate * scale
    changes = []
    for _, variable, gradient, slots, decays in parameters:
        # Not ResourceApplyAdam, which subtracts a beta rounded to float32 from 1.
        m, v = moments.after(slots, gradient)
        step = corrected_rate * m / (tf.sqrt(v) + epsilon)
        if context.weight_decay and decays:
            step += rate * context.weight_decay * variable
        changes.append(Change(step, (m, v)))
    return changes


def fused_adam_w(
    operations: ModuleType,
    parameters: Sequence[Parameter],
    rate: tf.Tensor,
    factor: tf.Tensor | float,
    context: UpdateContext,
    **options: Any,
) -> Applied:
    """Updates all weights in one pass over memory."""
    arguments = Moments(**options).native_arguments(parameters, rate, factor, context)
    return Applied(operations.bert_tf_adam_w(**arguments))


ROW = OptimizerRow(
    title="AdamW",
    rule=adam_w,
    fused_rule=fused_adam_w,
    slots=SLOTS,
    options={"bias_correction": BIAS_CORRECTION, **MOMENTS},
    counts_updates=corrects_bias,
    can_be_sharded=True,
)
