"""LAMB: Adam with decay, its updates scaled to each variable's norm (You et al. 2020, algorithm 2).

Weight decay is added before the norms are computed.

With ``prenormalize``, gradients are divided by their global norm before the moments are updated, as
in NVLAMB ("Pretraining BERT with Layer-wise Adaptive Learning Rates", NVIDIA's developer blog,
2019). Clipping before that would cancel out, so the clip norm has no effect: every update's
gradients have norm 1. NVIDIA's published code (LAMB in TensorFlow, apex's FusedLAMB) divides by the
norm only if it exceeds 1, which is ``prenormalize=False`` with a clip norm of 1. apex's
``use_nvlamb`` is different: it also adapts the variables without decay, which corresponds to an
empty ``exclude_from_layer_adaptation``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from bert_tf.update.optimizers.adam import MOMENTS, SLOTS, Moments, corrects_bias
from bert_tf.update.optimizers.row import Applied, Change, OptimizerRow, Parameter, UpdateContext
from bert_tf.util.options import Option, Options
from bert_tf.util.tensorflow import tf

LAYER_ADAPTATION = {
    "min_trust_ratio": Option(
        None,
        flag="min_trust_ratio",
        help_text="LAMB, LANS: lower bound of the trust ratio; unbounded if not given.",
        kind=float,
    ),
    "max_trust_ratio": Option(
        None,
        flag="max_trust_ratio",
        help_text="LAMB, LANS: upper bound of the trust ratio; unbounded if not given.",
        kind=float,
    ),
    "exclude_from_layer_adaptation": Option(
        None,
        flag="exclude_from_layer_adaptation",
        help_text="LAMB, LANS: comma-separated regular expressions; a variable whose name matches "
        "one has trust ratio 1 (default: variables without weight decay; empty: none).",
        kind=str,
    ),
}


def lamb(
    parameters: Sequence[Parameter],
    rate: tf.Tensor,
    context: UpdateContext,
    *,
    prenormalize: bool,
    **options: Any,
) -> list[Change]:
    """Algorithm 2, treating each variable as a layer."""
    del prenormalize  # the gradients are already normalised
    moments, layers = moments_and_layers(parameters, **options)
    scale, epsilon = moments.corrections(context)
    values, directions = [], []
    for _, variable, gradient, slots, decays in parameters:
        m, v = moments.after(slots, gradient)
        direction = scale * m / (tf.sqrt(v) + epsilon)
        if decays:
            direction += context.weight_decay * variable
        values.append((m, v))
        directions.append(direction)
    [ratios] = layers.trust_ratios([directions], context)
    return [
        Change(rate * ratio * direction, slots, shown)
        for ratio, direction, slots, shown in zip(
            ratios, directions, values, layers.shown([ratios])
        )
    ]


def fused_lamb(
    operations: ModuleType,
    parameters: Sequence[Parameter],
    rate: tf.Tensor,
    factor: tf.Tensor | float,
    context: UpdateContext,
    *,
    prenormalize: bool,
    **options: Any,
) -> Applied:
    """Updates all weights in two passes over memory, computing norms between them."""
    del prenormalize  # the factor includes it
    moments, layers = moments_and_layers(parameters, **options)
    arguments = moments.native_arguments(parameters, rate, factor, context)
    squares = operations.bert_tf_lamb_moments(**arguments)
    ratios = operations.bert_tf_lamb_step(
        **arguments, **layers.native_arguments(), squares=context.sum_over_parts(squares)
    )
    return Applied(ratios.op, layers.shown_of_native(ratios))


def moments_and_layers(
    parameters: Sequence[Parameter],
    *,
    bias_correction: bool,
    beta_1: float,
    beta_2: float,
    **adaptation: Any,
) -> tuple[Moments, LayerAdaptation]:
    """What LAMB and LANS are made of, from their options."""
    moments = Moments(bias_correction, beta_1, beta_2)
    return moments, LayerAdaptation(parameters, **adaptation)


def normalised(gradients: Any, options: Options) -> Any:
    """Gradients scaled to norm 1 if the options request it; all-zero gradients stay zero."""
    return gradients.normalised() if options["prenormalize"] else gradients


class LayerAdaptation:
    """Each parameter's trust ratio: its norm divided by its direction's norm, within bounds.

    The ratio is 1 if either norm is zero, and for parameters that are not adapted.

    Args:
      parameters: all parameters of the update.
      min_trust_ratio: lower bound; None for no bound.
      max_trust_ratio: upper bound; None for no bound.
      exclude_from_layer_adaptation: comma-separated regular expressions; variables whose names
        match one are not adapted. None excludes the variables that do not decay; an empty string
        excludes none.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        *,
        min_trust_ratio: float | None,
        max_trust_ratio: float | None,
        exclude_from_layer_adaptation: str | None,
    ):
        self._parameters = parameters
        self._least = 0.0 if min_trust_ratio is None else min_trust_ratio
        self._most = float("inf") if max_trust_ratio is None else max_trust_ratio
        if exclude_from_layer_adaptation is None:
            self._adapts = [parameter.decays for parameter in parameters]
        else:
            excluded = _patterns(exclude_from_layer_adaptation)
            self._adapts = [not any(e.search(p.name) for e in excluded) for p in parameters]

    def trust_ratios(
        self, directions: Sequence[Sequence[tf.Tensor]], context: UpdateContext
    ) -> list[list[tf.Tensor]]:
        """The factors for directions, which include the decay: float32 scalars.

        Each entry of ``directions``, like each list of the result, has one item per parameter.
        """
        adapted = [number for number, adapts in enumerate(self._adapts) if adapts]
        ratios = [[tf.constant(1.0)] * len(self._parameters) for _ in directions]
        if not adapted:
            return ratios
        tensors = [tf.convert_to_tensor(self._parameters[number].variable) for number in adapted]
        for of_direction in directions:
            tensors += [of_direction[number] for number in adapted]
        norms = iter(context.norms(tensors))
        weight_norms = [next(norms) for _ in adapted]
        for found in ratios:
            for number, weight_norm in zip(adapted, weight_norms):
                ratio = tf.math.divide_no_nan(weight_norm, next(norms))
                bounded = tf.clip_by_value(ratio, self._least, self._most)
                found[number] = tf.where_v2(ratio > 0.0, bounded, 1.0)
        return ratios

    def shown(self, ratios: Sequence[Sequence[tf.Tensor]]) -> list[tuple[tf.Tensor, ...]]:
        """The ratios of all kinds for each parameter, NaN if it is not adapted."""
        missing = (tf.constant(float("nan")),) * len(ratios)
        return [own if adapts else missing for own, adapts in zip(zip(*ratios), self._adapts)]

    def shown_of_native(self, ratios: tf.Tensor) -> tf.Tensor:
        """Like :meth:`shown`, from a native operation's result: float32 [kinds, parameters]."""
        return tf.where_v2(self._adapts, ratios, float("nan"))

    def native_arguments(self) -> dict[str, object]:
        """The arguments of the native operations that use trust ratios."""
        return {
            "adapts": self._adapts,
            "min_trust_ratio": self._least,
            "max_trust_ratio": self._most,
        }


def _patterns(text: str) -> list[re.Pattern[str]]:
    """Compiles the comma-separated regular expressions of a flag; raises re.error."""
    return [re.compile(expression) for expression in text.split(",") if expression]


def contradictory_adaptation(options: Options) -> str | None:
    """A sentence about impossible bounds or exclusions; None if they are valid."""
    least, most = options["min_trust_ratio"], options["max_trust_ratio"]
    if least is not None and least < 0:
        return f"--min_trust_ratio={least:g} must not be negative."
    if most is not None and most <= 0:
        return f"--max_trust_ratio={most:g} must be positive."
    if least is not None and most is not None and least > most:
        return (
            f"--min_trust_ratio={least:g} is greater than --max_trust_ratio={most:g}; give bounds "
            "in ascending order."
        )
    text = options["exclude_from_layer_adaptation"]
    try:
        _patterns(text or "")
    except re.error as error:
        return (
            f"--exclude_from_layer_adaptation={text}: '{error.pattern!s}' is not a regular "
            f"expression ({error.msg}); give names or expressions separated by commas."
        )
    return None


ROW = OptimizerRow(
    title="LAMB",
    rule=lamb,
    fused_rule=fused_lamb,
    slots=SLOTS,
    options={
        "bias_correction": Option(True),
        **MOMENTS,
        **LAYER_ADAPTATION,
        "prenormalize": Option(
            False,
            flag="lamb_prenormalize",
            help_text="LAMB: divide gradients by their global norm before updating the moments "
            "(NVIDIA's NVLAMB); --clip_norm then has no effect.",
        ),
    },
    counts_updates=corrects_bias,
    prepare=normalised,
    ratio_kinds=("trust_ratio",),
    can_be_sharded=True,
    contradiction=contradictory_adaptation,
)
