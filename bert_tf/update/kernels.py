"""The arithmetic of an update in two forms: TensorFlow's operations, and our own in C++.

Both have the same methods, so that an optimizer is written once. They agree but for rounding.
TensorFlow's form runs everywhere; the native one goes over memory once and wants a CPU and a
library that was compiled at set-up.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple, Union

import tensorflow.compat.v1 as tf

from bert_tf.errors import UserError
from bert_tf.model.blocks import native_operations, natively
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.native import library
from bert_tf.ranks.distribution import SingleProcess

# Numbers that TensorFlow adds up in one thread: with ten times as many it takes several.
_LONGEST_ROW = 1024


class Part(NamedTuple):
    """One variable's part in an update.

    Attributes:
      variable: float32 resource variable.
      m, v: its moments.
      gradient: dense float32, of the variable's shape; to be multiplied by ``Rule.factor``.
      decays: whether weight decay applies.
    """

    variable: tf.Variable
    m: tf.Variable
    v: tf.Variable
    gradient: tf.Tensor
    decays: bool


class Rule(NamedTuple):
    """Numbers of one update, the same for all variables; tensors are float32 scalars.

    Adam's direction is ``scale * m / (sqrt(v) + epsilon)``.

    Attributes:
      factor: what gradients are multiplied by first; None leaves them as they are.
    """

    factor: tf.Tensor | None
    learning_rate: tf.Tensor
    scale: tf.Tensor
    epsilon: tf.Tensor
    beta_1: float
    beta_2: float
    weight_decay: float


class TensorFlowKernels:
    """TensorFlow's operations, several a variable.

    Args:
      reason: why not the native ones, for the record.
    """

    def __init__(self, reason: str = "asked for"):
        self.description = f"TensorFlow's ({reason})"

    def layers(self, policy: PrecisionPolicy) -> PrecisionPolicy:
        """The policy whose layers are computed in the same form as the update: as it is."""
        return policy

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums over micro batches with those of one more, float32."""
        return [total + gradient for total, gradient in zip(sums, gradients)]

    def global_norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The root of the sum of all squares, a float32 scalar."""
        with tf.name_scope("global_norm"):
            return _norm(gradients)

    def adamw(self, parts: Sequence[Part], rule: Rule) -> tf.Operation:
        """Moves all variables and moments by Adam with decoupled weight decay."""
        rate = rule.learning_rate * rule.scale
        return tf.group(*(self._adamw(part, rule, rate) for part in parts))

    def lamb(self, parts: Sequence[Part], rule: Rule, bounds: tuple[float, float]) -> tf.Operation:
        """Moves all variables and moments by LAMB; ``bounds`` are those of the trust ratio."""
        return tf.group(*(self._lamb(part, rule, bounds) for part in parts))

    def _adamw(self, part: Part, rule: Rule, rate: tf.Tensor) -> tf.Operation:
        before = []
        if rule.weight_decay and part.decays:
            decayed = rule.learning_rate * rule.weight_decay * part.variable
            before.append(part.variable.assign_sub(decayed, read_value=False))
        # One pass over memory. Beta powers of 0 switch the kernel's own correction off, whose
        # epsilon is not corrected; ours is in the rate and in epsilon.
        with tf.control_dependencies(before):
            return tf.raw_ops.ResourceApplyAdam(
                var=part.variable.handle,
                m=part.m.handle,
                v=part.v.handle,
                beta1_power=0.0,
                beta2_power=0.0,
                lr=rate,
                beta1=rule.beta_1,
                beta2=rule.beta_2,
                epsilon=rule.epsilon,
                grad=times(part.gradient, rule.factor),
            )

    def _lamb(self, part: Part, rule: Rule, bounds: tuple[float, float]) -> tf.Operation:
        gradient = times(part.gradient, rule.factor)
        m = part.m * rule.beta_1 + gradient * (1.0 - rule.beta_1)
        v = part.v * rule.beta_2 + tf.square(gradient) * (1.0 - rule.beta_2)
        update = rule.scale * m / (tf.sqrt(v) + rule.epsilon)
        rate = rule.learning_rate
        if part.decays:
            update += rule.weight_decay * part.variable
            rate *= _trust_ratio(part.variable, update, bounds)
        return tf.group(
            part.m.assign(m, read_value=False),
            part.v.assign(v, read_value=False),
            part.variable.assign_sub(rate * update, read_value=False),
        )


def times(tensor: tf.Tensor | None, factor: tf.Tensor | None) -> tf.Tensor | None:
    """The product of two tensors, either of which may be None for 1."""
    if tensor is None or factor is None:
        return factor if tensor is None else tensor
    return tensor * factor


def _trust_ratio(
    variable: tf.Variable, update: tf.Tensor, bounds: tuple[float, float]
) -> tf.Tensor:
    weight_norm, update_norm = _norm([tf.convert_to_tensor(variable)]), _norm([update])
    ratio = tf.math.divide_no_nan(weight_norm, update_norm)
    return tf.where_v2(ratio > 0.0, tf.clip_by_value(ratio, *bounds), 1.0)


def _norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The root of the sum of all squares: the same bits with any number of threads.

    TensorFlow cuts the sum over a large tensor into as many parts as it has threads, so that ranks
    of unequal hosts would not clip by the same factor. A sum over rows it gives to threads row by
    row, and one of few numbers to a single thread.
    """
    norms = tf.concat([_norms_of_rows(tensor) for tensor in tensors], axis=0)
    while norms.shape[0] > _LONGEST_ROW:
        norms = _norms_of_rows(norms)
    return tf.math.reduce_euclidean_norm(norms)


def _norms_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    """[N] of the same norm, N being 1 for each row, or a vector's numbers where they are few."""
    size = tensor.shape.num_elements()
    if size <= _LONGEST_ROW:
        return tf.reshape(tensor, [size])
    if size == tensor.shape[-1]:
        padded = tf.pad(tf.reshape(tensor, [size]), [[0, -size % _LONGEST_ROW]])
        tensor = tf.reshape(padded, [-1, _LONGEST_ROW])
    return tf.reshape(tf.math.reduce_euclidean_norm(tensor, axis=-1), [-1])


class NativeKernels:
    """Our operations: one for all variables. For CPUs; methods as of :class:`TensorFlowKernels`.

    They give the same bits with any number of threads. Raises ``library.MissingLibrary``.
    """

    description = "native"

    def __init__(self) -> None:
        self._operations = library.load()

    def layers(self, policy: PrecisionPolicy) -> PrecisionPolicy:
        """The policy with native layers, where there are operations for its types."""
        return natively(policy)

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums over micro batches with those of one more, float32: in the memory of the sums."""
        made = [_as_made(gradient) for gradient in gradients]
        return list(self._operations.bert_tf_add_gradients(sums=sums, gradients=made))

    def global_norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The root of the sum of all squares, summed in float64: a float32 scalar."""
        return self._operations.bert_tf_global_norm(values=[_as_made(g) for g in gradients])

    def adamw(self, parts: Sequence[Part], rule: Rule) -> tf.Operation:
        """Moves all variables and moments by Adam with decoupled weight decay."""
        return self._operations.bert_tf_adam_w(**_arguments(parts, rule))

    def lamb(self, parts: Sequence[Part], rule: Rule, bounds: tuple[float, float]) -> tf.Operation:
        """Moves all variables and moments by LAMB; ``bounds`` are those of the trust ratio."""
        least, most = bounds
        return self._operations.bert_tf_lamb(
            **_arguments(parts, rule), min_trust_ratio=least, max_trust_ratio=most
        )


def _as_made(gradient: tf.Tensor) -> tf.Tensor:
    """A gradient without the cast to float32 that ends a backward pass in bfloat16.

    The native operations read both types, and one pass over memory less is made.
    """
    if gradient.op.type == "Cast" and gradient.op.inputs[0].dtype == tf.bfloat16:
        return gradient.op.inputs[0]
    return gradient


def _arguments(parts: Sequence[Part], rule: Rule) -> dict[str, object]:
    return {
        "weights": [part.variable.handle for part in parts],
        "first_moments": [part.m.handle for part in parts],
        "second_moments": [part.v.handle for part in parts],
        "gradients": [_as_made(part.gradient) for part in parts],
        "decays": [part.decays for part in parts],
        **rule._replace(factor=1.0 if rule.factor is None else rule.factor)._asdict(),
    }


Kernels = Union[TensorFlowKernels, NativeKernels]


def choose_kernels(wanted: bool | None, *, has_gpu: bool, ranks: SingleProcess) -> Kernels:
    """The form that all ranks use. Collective.

    Args:
      wanted: true insists on the native form, false on TensorFlow's, None takes the native one
        where all ranks have it and compute on CPUs.
      has_gpu: whether the job computes on GPUs.
      ranks: all ranks.

    Raises UserError on every rank where the native form is wanted and one of them lacks it.
    """
    if wanted is False:
        return TensorFlowKernels("--native_ops=false")
    native, problem = _native_kernels(has_gpu)
    found = ranks.gather((socket.gethostname(), problem))
    missing = [
        problem if len(found) == 1 else f"rank {rank} on host {host}: {problem}"
        for rank, (host, problem) in enumerate(found)
        if problem
    ]
    if wanted and missing:
        raise UserError(
            f"--native_ops: {missing[0]}; drop the flag to use TensorFlow's operations."
        )
    return TensorFlowKernels(missing[0]) if missing else native


def _native_kernels(has_gpu: bool) -> tuple[NativeKernels | None, str | None]:
    """The native form, or why this rank has none."""
    if has_gpu:
        return None, "the native operations are for CPUs, and this job runs on GPUs"
    try:
        native_operations()  # the layers': a job takes all or none
        return NativeKernels(), None
    except library.MissingLibrary as error:
        return None, str(error)
