"""The LAMB optimizer, and the base class of optimizers with a trust ratio for each variable."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.config.optimizers import name_patterns
from bert_tf.ranks.distribution import Gradient
from bert_tf.update.optimizers.adam import AdamMoments
from bert_tf.update.optimizers.base import Parameter


class LayerwiseMoments(AdamMoments):
    """Adam's direction, scaled by the trust ratio of each variable.

    The trust ratio is the norm of the variable divided by that of its direction, within bounds; it
    is 1 where either is zero. Further arguments are those of :class:`AdamMoments`.

    Args:
      learning_rate: scalar, a tensor or a number.
      bias_correction: as in :class:`AdamMoments`.
      min_trust_ratio: lower bound of the trust ratio, None for no bound.
      max_trust_ratio: upper bound of the trust ratio, None for no bound.
      exclude_from_layer_adaptation: comma-separated regular expressions; a variable in whose name
        one is found has trust ratio 1. None excludes the variables that do not decay, an empty
        text none.
    """

    ratio_kinds: ClassVar[tuple[str, ...]] = ("trust_ratio",)

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool = True,
        min_trust_ratio: float | None = None,
        max_trust_ratio: float | None = None,
        exclude_from_layer_adaptation: str | None = None,
        **shared: Any,
    ):
        super().__init__(learning_rate, bias_correction=bias_correction, **shared)
        self._min_trust_ratio = 0.0 if min_trust_ratio is None else min_trust_ratio
        self._max_trust_ratio = float("inf") if max_trust_ratio is None else max_trust_ratio
        self._excluded = None
        if exclude_from_layer_adaptation is not None:
            self._excluded = name_patterns(exclude_from_layer_adaptation)
        self._ratios: dict[str, tf.Tensor] = {}

    def trust_ratios(self, variables: Sequence[tf.Variable]) -> tf.Tensor:
        """As in the base class."""
        return tf.stack([self._ratios[variable.op.name] for variable in variables], axis=1)

    def keep_ratios(self, parameters: Sequence[Parameter], ratios: tf.Tensor) -> None:
        """Notes what :meth:`trust_ratios` returns of these parameters: [kinds, parameters]."""
        adapted = [self._adapts(parameter) for parameter in parameters]
        shown = tf.where_v2(adapted, ratios, float("nan"))
        shown.set_shape([len(self.ratio_kinds), len(parameters)])
        for parameter, of_variable in zip(parameters, tf.unstack(shown, axis=1)):
            self._ratios[self.name_of(parameter.variable)] = of_variable

    def ratios_of(
        self, parameters: Sequence[Parameter], *directions: Sequence[tf.Tensor]
    ) -> list[list[tf.Tensor]]:
        """The factors of directions, decay included: float32 scalars.

        Each of ``directions`` has one for every parameter; so has each list of the result.
        """
        adapted = [number for number, p in enumerate(parameters) if self._adapts(p)]
        ratios = [[tf.constant(1.0)] * len(parameters) for _ in directions]
        if not adapted:
            return ratios
        tensors = [tf.convert_to_tensor(parameters[number].variable) for number in adapted]
        for of_direction in directions:
            tensors += [of_direction[number] for number in adapted]
        norms = iter(self.norms(tensors))
        weight_norms = [next(norms) for _ in adapted]
        for found in ratios:
            for number, weight_norm in zip(adapted, weight_norms):
                found[number] = self._bounded(tf.math.divide_no_nan(weight_norm, next(norms)))
        return ratios

    def _bounded(self, ratio: tf.Tensor) -> tf.Tensor:
        bounded = tf.clip_by_value(ratio, self._min_trust_ratio, self._max_trust_ratio)
        return tf.where_v2(ratio > 0.0, bounded, 1.0)

    def native_bounds(self, parameters: Sequence[Parameter]) -> dict[str, object]:
        """The arguments of the native operations that make a step with trust ratios."""
        return {
            "adapts": [self._adapts(parameter) for parameter in parameters],
            "min_trust_ratio": self._min_trust_ratio,
            "max_trust_ratio": self._max_trust_ratio,
        }

    def _adapts(self, parameter: Parameter) -> bool:
        if self._excluded is None:
            return parameter.decays
        name = self.name_of(parameter.variable)
        return not any(pattern.search(name) for pattern in self._excluded)


class Lamb(LayerwiseMoments):
    """Adam with decay and updates scaled to each variable's norm (You et al. 2020, algorithm 2).

    The decay is added before the norms are computed. Further arguments are those of
    :class:`LayerwiseMoments`.

    With ``prenormalize``, gradients are divided by their global norm before the moments, as in
    NVLAMB ("Pretraining BERT with Layer-wise Adaptive Learning Rates", NVIDIA's developer blog,
    2019). A clip before that would cancel, so the clip norm has no effect: the gradients of every
    update have norm 1. NVIDIA's published code (LAMB in TensorFlow, apex's FusedLAMB) divides by
    the norm only where it is greater than 1, which is ``prenormalize=False`` with a clip norm of 1.
    apex's ``use_nvlamb`` is another matter: it adapts the variables without decay too, which is an
    empty ``exclude_from_layer_adaptation``.

    Args:
      learning_rate: scalar, a tensor or a number.
      prenormalize: divide gradients by their global norm; gradients that are all zero stay so.
      name: prefix of operation names.
    """

    registered_as = "lamb"

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        prenormalize: bool = False,
        name: str = "Lamb",
        **shared: Any,
    ):
        super().__init__(learning_rate, name=name, **shared)
        self._prenormalize = prenormalize

    def apply_gradients(
        self,
        grads_and_vars: Sequence[tuple[Gradient, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        *,
        factor: tf.Tensor | None = None,
        norm: tf.Tensor | None = None,
    ) -> tf.Operation:
        """As in the base class; with ``prenormalize``, ``factor`` cancels and is not used."""
        if self._prenormalize:
            grads_and_vars = list(grads_and_vars)
            if norm is None:
                trained = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
                norm = self.global_norm(*zip(*(p for p in trained if self.trained([p[1]]))))
            factor = tf.math.divide_no_nan(1.0, norm)
        return super().apply_gradients(grads_and_vars, global_step, name, factor=factor)

    def update(self, parameters: Sequence[Parameter], learning_rate: tf.Tensor) -> tf.Operation:
        """Algorithm 2, with each variable as a layer."""
        scale, epsilon = self.bias_corrections()
        steps, directions = [], []
        for parameter in parameters:
            weight, (m_slot, v_slot), gradient, decays = parameter
            m, v = self.next_moments(parameter, gradient)
            direction = scale * m / (tf.sqrt(v) + epsilon)
            if decays:
                direction += self.weight_decay * weight
            directions.append(direction)
            steps += [m_slot.assign(m, read_value=False), v_slot.assign(v, read_value=False)]
        [ratios] = self.ratios_of(parameters, directions)
        for parameter, direction, ratio in zip(parameters, directions, ratios):
            change = learning_rate * ratio * direction
            steps.append(parameter.variable.assign_sub(change, read_value=False))
        self.keep_ratios(parameters, tf.stack([ratios]))
        return tf.group(*steps)

    def native_update(
        self,
        operations: ModuleType,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> tf.Operation:
        """Makes two passes over memory for all weights together, with the norms between them."""
        arguments = self.native_arguments(parameters, learning_rate, gradient_factor)
        squares = operations.bert_tf_lamb_moments(**arguments)
        ratios = operations.bert_tf_lamb_step(
            **arguments, **self.native_bounds(parameters), squares=self.sum_over_parts(squares)
        )
        self.keep_ratios(parameters, ratios)
        return ratios.op
