"""AdamW and LAMB from the same parts: moments, decay mask, bias correction, slots.

Both keep their moments in ``<variable>/adam_m`` and ``<variable>/adam_v``, Google's names. An
update that a ``tf.cond`` skips leaves variables, moments and the update count alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.ranks.distribution import Gradient
from bert_tf.update.kernels import Kernels, Part, Rule, TensorFlowKernels
from bert_tf.update.state import create_count

DecayMask = Callable[[str], bool]

UPDATE_COUNT = "optimizer/update_count"

_WITHOUT_DECAY = re.compile(r"LayerNorm|layer_norm|bias")


def decays(variable_name: str) -> bool:
    """Google's mask: weight decay for all but layer normalisations and biases."""
    return _WITHOUT_DECAY.search(variable_name) is None


def clip_factor(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """What gradients are multiplied by, so that their global norm is at most ``clip_norm``.

    Args:
      norm: scalar, their global norm; finite, so check that before.
      clip_norm: positive; infinity clips nothing.
    """
    # Exactly 1 where nothing is to be clipped.
    return tf.minimum(1.0, clip_norm / norm)


class AdamBase(tf.train.Optimizer):
    """What AdamW and LAMB share.

    Args:
      learning_rate: scalar, a tensor or a number.
      bias_correction: divides the moments by ``1 - beta**t``, t being 1 in the first update.
      beta_1: decay of the mean of gradients.
      beta_2: decay of the mean of squared gradients.
      epsilon: added to the root of the second moment.
      weight_decay: rate of the decay.
      decay_mask: says of a variable's name whether the variable decays.
      kernels: the form of the arithmetic; None takes TensorFlow's.
      name: prefix of the operations' names.
    """

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        decay_mask: DecayMask = decays,
        kernels: Kernels | None = None,
        name: str,
    ):
        super().__init__(use_locking=False, name=name)
        self.kernels = kernels or TensorFlowKernels()
        self._learning_rate = learning_rate
        # The kernels compute 1 - beta in float32. Rounded here already, so that the bias
        # correction, in float64, corrects for the same beta.
        self._beta_1, self._beta_2 = float(np.float32(beta_1)), float(np.float32(beta_2))
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        self._decay_mask = decay_mask
        self._bias_correction = bias_correction
        self._update_count = None
        self._factor: tf.Tensor | None = None
        self._parts: list[Part] = []

    def apply_gradients(
        self,
        grads_and_vars: Sequence[tuple[Gradient, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        *,
        factor: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Updates the variables by ``factor`` times their gradients; else as TensorFlow's method.

        ``factor`` is a float32 scalar and costs no pass over the gradients of its own where the
        kernels can do without; None is 1.
        """
        self._factor = factor
        return super().apply_gradients(grads_and_vars, global_step, name)

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates what is kept of the variables, which apply_gradients does by itself."""
        self._create_slots(variables)

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", "adam_m")
            self._zeros_slot(variable, "v", "adam_v")
        if self._bias_correction and self._update_count is None:
            # A count of its own: global_step belongs to the caller, who may set it or skip it.
            self._update_count = create_count(UPDATE_COUNT)

    def _prepare(self) -> None:
        self._parts = []

    def _resource_apply_dense(self, grad: tf.Tensor, variable: tf.Variable) -> tf.Operation:
        """Notes the gradient: all variables are updated together, in :meth:`_finish`."""
        moments = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        self._parts.append(Part(variable, *moments, grad, self._decay_mask(variable.op.name)))
        return grad.op

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, variable: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Rows that no index names decay and follow their momentum as well, so all are updated."""
        dense = tf.math.unsorted_segment_sum(grad, indices, variable.shape[0])
        return self._resource_apply_dense(dense, variable)

    def _finish(self, update_ops: Sequence[tf.Operation], name_scope: str) -> tf.Operation:
        del update_ops  # the gradients, which the update takes anyway
        update = self._update(self._parts, self._rule())
        if not self._bias_correction:
            return tf.group(update, name=name_scope)
        # The update reads the count, so it may only change after it.
        with tf.control_dependencies([update]):
            return tf.group(self._update_count.assign_add(1), name=name_scope)

    def _update(self, parts: Sequence[Part], rule: Rule) -> tf.Operation:
        """Moves all variables and moments."""
        raise NotImplementedError

    def _rule(self) -> Rule:
        scale, epsilon = self._bias_corrected()
        return Rule(
            factor=self._factor,
            learning_rate=tf.convert_to_tensor(self._learning_rate, tf.float32),
            scale=scale,
            epsilon=epsilon,
            beta_1=self._beta_1,
            beta_2=self._beta_2,
            weight_decay=self._weight_decay,
        )

    def _bias_corrected(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The scale of Adam's direction and its epsilon."""
        if not self._bias_correction:
            return tf.constant(1.0), tf.constant(self._epsilon)
        # The rule is m / (1 - beta_1**t) over sqrt(v / (1 - beta_2**t)) + epsilon, t being 1 in
        # the first update; here the corrections are moved from the tensors to the scalars.
        # float64: in float32 the first 1 - beta_2**t would be off by 6e-5 of itself.
        number = tf.cast(self._update_count.read_value() + 1, tf.float64)
        root = tf.sqrt(1.0 - tf.pow(tf.constant(self._beta_2, tf.float64), number))
        scale = root / (1.0 - tf.pow(tf.constant(self._beta_1, tf.float64), number))
        return tf.cast(scale, tf.float32), tf.cast(root * self._epsilon, tf.float32)


class AdamW(AdamBase):
    """Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019).

    The defaults are BERT's: no bias correction, decay by ``learning_rate * weight_decay``. The
    other arguments are those of :class:`AdamBase`.
    """

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool = False,
        name: str = "AdamW",
        **settings: Any,
    ):
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **settings)

    def _update(self, parts: Sequence[Part], rule: Rule) -> tf.Operation:
        return self.kernels.adamw(parts, rule)


class Lamb(AdamBase):
    """Adam with decay, each variable's update scaled to its norm (You et al. 2020, algorithm 2).

    The decay is added before the norms are taken. A variable that does not decay, or whose own
    norm or update is zero, has trust ratio 1. The other arguments are those of
    :class:`AdamBase`.

    Args:
      learning_rate: scalar, a tensor or a number.
      bias_correction: as in :class:`AdamBase`.
      min_trust_ratio: lower bound of the trust ratio, None for no bound.
      max_trust_ratio: upper bound of the trust ratio, None for no bound.
      name: prefix of the operations' names.
    """

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        bias_correction: bool = True,
        min_trust_ratio: float | None = None,
        max_trust_ratio: float | None = None,
        name: str = "Lamb",
        **settings: Any,
    ):
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **settings)
        self._bounds = (
            0.0 if min_trust_ratio is None else min_trust_ratio,
            float("inf") if max_trust_ratio is None else max_trust_ratio,
        )

    def _update(self, parts: Sequence[Part], rule: Rule) -> tf.Operation:
        return self.kernels.lamb(parts, rule, self._bounds)
