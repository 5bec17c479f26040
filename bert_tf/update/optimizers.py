"""AdamW and LAMB from the same parts: moments, decay mask, bias correction, slots.

Both keep their moments in ``<variable>/adam_m`` and ``<variable>/adam_v``, Google's names. An
update that a ``tf.cond`` skips leaves variables, moments and the update count alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

DecayMask = Callable[[str], bool]

UPDATE_COUNT = "optimizer/update_count"

_WITHOUT_DECAY = re.compile(r"LayerNorm|layer_norm|bias")


def decays(variable_name: str) -> bool:
    """Google's mask: weight decay for all but layer normalisations and biases."""
    return _WITHOUT_DECAY.search(variable_name) is None


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor], norm: tf.Tensor, clip_norm: float
) -> list[tf.Tensor]:
    """Scales ``gradients`` down to ``clip_norm`` where their ``norm`` is larger.

    Args:
      gradients: float32 tensors.
      norm: scalar, their global norm; finite, so check that before.
      clip_norm: positive.
    """
    # Exactly 1 where nothing is to be clipped.
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return [gradient * factor for gradient in gradients]


class _Coefficients(NamedTuple):
    """Float32 scalars of one update, the same for all variables.

    Adam's direction is ``scale * m / (sqrt(v) + epsilon)``.
    """

    learning_rate: tf.Tensor
    scale: tf.Tensor
    epsilon: tf.Tensor


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
        name: str,
    ):
        super().__init__(use_locking=False, name=name)
        self._learning_rate = learning_rate
        # The kernel computes 1 - beta in float32. Rounded here already, so that the bias
        # correction, in float64, corrects for the same beta.
        self._beta_1, self._beta_2 = float(np.float32(beta_1)), float(np.float32(beta_2))
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        self._decay_mask = decay_mask
        self._bias_correction = bias_correction
        self._update_count = None
        self._coefficients = None

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "m", "adam_m")
            self._zeros_slot(variable, "v", "adam_v")
        if self._bias_correction and self._update_count is None:
            # A count of its own: global_step belongs to the caller, who may set it or skip it.
            self._update_count = tf.get_variable(
                UPDATE_COUNT,
                shape=[],
                dtype=tf.int64,
                initializer=tf.zeros_initializer(),
                trainable=False,
                use_resource=True,
            )

    def _prepare(self) -> None:
        learning_rate = tf.convert_to_tensor(self._learning_rate, tf.float32)
        if not self._bias_correction:
            self._coefficients = _Coefficients(
                learning_rate, tf.constant(1.0), tf.constant(self._epsilon)
            )
            return
        # The rule is m / (1 - beta_1**t) over sqrt(v / (1 - beta_2**t)) + epsilon, t being 1 in
        # the first update; here the corrections are moved from the tensors to the scalars.
        # float64: in float32 the first 1 - beta_2**t would be off by 6e-5 of itself.
        number = tf.cast(self._update_count.read_value() + 1, tf.float64)
        root = tf.sqrt(1.0 - tf.pow(tf.constant(self._beta_2, tf.float64), number))
        scale = root / (1.0 - tf.pow(tf.constant(self._beta_1, tf.float64), number))
        self._coefficients = _Coefficients(
            learning_rate, tf.cast(scale, tf.float32), tf.cast(root * self._epsilon, tf.float32)
        )

    def _finish(self, update_ops: Sequence[tf.Operation], name_scope: str) -> tf.Operation:
        if not self._bias_correction:
            return tf.group(*update_ops, name=name_scope)
        # The updates read the count, so it may only change after them.
        with tf.control_dependencies(update_ops):
            return tf.group(self._update_count.assign_add(1), name=name_scope)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, variable: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Rows that no index names decay and follow their momentum as well, so all are updated."""
        dense = tf.math.unsorted_segment_sum(grad, indices, variable.shape[0])
        return self._resource_apply_dense(dense, variable)


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

    def _resource_apply_dense(self, grad: tf.Tensor, variable: tf.Variable) -> tf.Operation:
        coefficients = self._coefficients
        before = []
        if self._weight_decay and self._decay_mask(variable.op.name):
            decayed = coefficients.learning_rate * self._weight_decay * variable
            before.append(variable.assign_sub(decayed, read_value=False))
        # One pass over memory. Beta powers of 0 switch the kernel's own correction off, whose
        # epsilon is not corrected; ours is in the rate and in epsilon.
        with tf.control_dependencies(before):
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=self.get_slot(variable, "m").handle,
                v=self.get_slot(variable, "v").handle,
                beta1_power=0.0,
                beta2_power=0.0,
                lr=coefficients.learning_rate * coefficients.scale,
                beta1=self._beta_1,
                beta2=self._beta_2,
                epsilon=coefficients.epsilon,
                grad=grad,
            )


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
        self._min_trust_ratio = 0.0 if min_trust_ratio is None else min_trust_ratio
        self._max_trust_ratio = float("inf") if max_trust_ratio is None else max_trust_ratio

    def _resource_apply_dense(self, grad: tf.Tensor, variable: tf.Variable) -> tf.Operation:
        coefficients = self._coefficients
        slot_m, slot_v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        m = slot_m * self._beta_1 + grad * (1.0 - self._beta_1)
        v = slot_v * self._beta_2 + tf.square(grad) * (1.0 - self._beta_2)
        update = coefficients.scale * m / (tf.sqrt(v) + coefficients.epsilon)
        rate = coefficients.learning_rate
        if self._decay_mask(variable.op.name):
            update += self._weight_decay * variable
            rate *= self._trust_ratio(variable, update)
        return tf.group(
            slot_m.assign(m, read_value=False),
            slot_v.assign(v, read_value=False),
            variable.assign_sub(rate * update, read_value=False),
        )

    def _trust_ratio(self, variable: tf.Variable, update: tf.Tensor) -> tf.Tensor:
        weight_norm, update_norm = tf.norm(variable), tf.norm(update)
        ratio = tf.math.divide_no_nan(weight_norm, update_norm)
        bounded = tf.clip_by_value(ratio, self._min_trust_ratio, self._max_trust_ratio)
        return tf.where_v2(ratio > 0.0, bounded, 1.0)
