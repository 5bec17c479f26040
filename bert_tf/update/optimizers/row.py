"""What defines an optimizer: a rule that computes new values, and a row that describes it.

Each module of this folder defines both for one optimizer. Flags and estimates read rows without
loading TensorFlow, which ``util.tensorflow`` imports when a rule is called.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from bert_tf.util.options import Option, Options
from bert_tf.util.tensorflow import tf

FLOAT32_BYTES = 4
# TensorFlow sums this many elements in a single thread, but splits a sum ten times as long.
_LONGEST_ROW = 1024

Shapes = Mapping[str, Sequence[int]]


class Parameter(NamedTuple):
    """One variable in an update.

    Attributes:
      name: the variable's name, also where ``variable`` is only a part of it.
      variable: float32 resource variable; if optimizer state is sharded, this rank's part of it, a
        vector.
      gradient: dense float32 of the same shape.
      slots: float32 variables of the same shape, in the row's order; empty if another rank owns
        them.
      decays: whether weight decay applies.
    """

    name: str
    variable: tf.Variable
    gradient: tf.Tensor
    slots: tuple[tf.Variable, ...]
    decays: bool


class Change(NamedTuple):
    """What an update does to a parameter.

    Attributes:
      step: float32, to be subtracted from the variable.
      slots: the new values of the slots, in the same order.
      ratios: float32 scalars, one for each of the row's ``ratio_kinds``: the trust ratios, NaN
        where none applies.
    """

    step: tf.Tensor
    slots: tuple[tf.Tensor, ...]
    ratios: tuple[tf.Tensor, ...] = ()


class Applied(NamedTuple):
    """An update that changes variables and slots in place.

    Attributes:
      operation: runs the update.
      ratios: float32 [ratio kinds, parameters], as in :class:`Change`, to be read after
        ``operation`` has run; None if the row has no ratio kinds.
    """

    operation: tf.Operation
    ratios: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class UpdateContext:
    """What a rule needs to know besides its parameters, learning rate and options.

    Attributes:
      weight_decay: weight-decay rate.
      update_number: float64 scalar, 1 in the first applied update; None if the row does not count.
      norms: computes the Euclidean norm of each tensor, float32 scalars. If parameters are parts
        of variables, the tensors must have the parameters' shapes; the norms are those of the
        whole variables, and the call is collective.
      sum_over_parts: adds up sums over each of the parameters in the same way.
      sums_of_squares: computes the sum of squares of each tensor of this rank, float64 [tensors].
      ranks: the ranks among which an update may divide its work.
      owners: the rank that owns a variable's slots, by name, for variables with an owner.
      product_type: dtype of matrix products.
    """

    weight_decay: float
    update_number: tf.Tensor | None
    norms: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
    sum_over_parts: Callable[[tf.Tensor], tf.Tensor]
    sums_of_squares: Callable[[Sequence[tf.Tensor]], tf.Tensor]
    ranks: Any
    owners: Mapping[str, int]
    product_type: tf.DType


# (parameters, rate, context, **options); the rate is one float32 scalar for all parameters.
Rule = Callable[..., list[Change]]
# (operations, parameters, rate, factor, context, **options); ``operations`` is the module loaded by
# ``bert_tf.native.library``. Gradients may be bfloat16, and must first be multiplied by the float32
# scalar ``factor``.
FusedRule = Callable[..., Applied]


def apply_changes(
    parameters: Sequence[Parameter], changes: Sequence[Change], where: tf.Tensor | None = None
) -> list[tf.Operation]:
    """Assigns the new values that a rule computed; those of before if ``where`` is False."""
    assigned = []
    for parameter, change in zip(parameters, changes):
        for slot, value in zip(parameter.slots, change.slots):
            value = value if where is None else tf.where_v2(where, value, slot)
            assigned.append(slot.assign(value, read_value=False))
        step = change.step if where is None else tf.where_v2(where, change.step, 0.0)
        assigned.append(parameter.variable.assign_sub(step, read_value=False))
    return assigned


@dataclasses.dataclass(frozen=True)
class OptimizerRow:
    """An optimizer: its rule, and what the rest of the toolkit knows about it.

    Attributes:
      title: the optimizer's usual name.
      rule: maps (parameters, learning rate, context, and its options as keywords) to a
        :class:`Change` for each parameter, using TensorFlow operations.
      slots: names of its float32 variables in a weight's shape: ``adam_m`` is stored as
        ``<weight>/adam_m``.
      choose_slots: maps a weight's name and shape to its slots; None if every weight has all
        ``slots``.
      options: its own options, by keyword.
      fused_rule: the native implementation of ``rule``; None if there is none.
      counts_updates: maps the options to whether the context needs an ``update_number``; None
        means never.
      prepare: maps the ``update.gradients.Gradients`` of an update and the options to the
        gradients that the rule takes; None leaves them unchanged.
      ratio_kinds: the kinds of trust ratios that each variable has in an update.
      can_be_sharded: whether the rule can update parts of weights, using ``UpdateContext.norms``
        and ``UpdateContext.sum_over_parts`` where a step depends on more than one element.
      choose_owners: maps the shapes of all trained weights, by name, and a number of ranks to the
        weights that are not divided when state is sharded, each with the rank that owns its
        slots; None divides all weights.
      contradiction: returns a sentence about contradictory options; None if they are valid.
    """

    title: str
    rule: Rule
    slots: tuple[str, ...]
    choose_slots: Callable[[str, Sequence[int]], tuple[str, ...]] | None = None
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    fused_rule: FusedRule | None = None
    counts_updates: Callable[[Options], bool] | None = None
    prepare: Callable[[Any, Options], Any] | None = None
    ratio_kinds: tuple[str, ...] = ()
    can_be_sharded: bool = False
    choose_owners: Callable[[Shapes, int], dict[str, int]] | None = None
    contradiction: Callable[[Options], str | None] | None = None

    def slots_of(self, name: str, shape: Sequence[int]) -> tuple[str, ...]:
        """The names of a weight's slots, in the row's order."""
        return self.slots if self.choose_slots is None else self.choose_slots(name, shape)

    def slot_bytes(self, shapes: Shapes) -> int:
        """Total bytes of the slots of the weights in ``shapes``, name -> shape."""
        return FLOAT32_BYTES * sum(
            len(self.slots_of(name, shape)) * math.prod(shape) for name, shape in shapes.items()
        )

    def resolve(self, given: Options) -> dict[str, Any]:
        """All options, with defaults for those that are not given."""
        return {name: given.get(name, option.default) for name, option in self.options.items()}

    def owners(self, shapes: Shapes, world_size: int) -> dict[str, int]:
        """The weights that are not divided when state is sharded, each with its owner."""
        return self.choose_owners(shapes, world_size) if self.choose_owners is not None else {}

    def problem_of(self, options: Options) -> str | None:
        """A sentence about out-of-bounds or contradictory options; None if they are valid."""
        for name, option in self.options.items():
            problem = option.problem(options[name])
            if problem is not None:
                return problem
        return None if self.contradiction is None else self.contradiction(options)


def euclidean_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm over all tensors, bit-equal for any number of threads.

    TensorFlow splits the sum over a large tensor into one part per thread, so ranks on different
    hosts could clip by different factors. Sums along rows use one thread per row, and a short sum
    uses a single thread.
    """
    norms = tf.concat([_norms_of_rows(tensor) for tensor in tensors], axis=0)
    while norms.shape[0] > _LONGEST_ROW:
        norms = _norms_of_rows(norms)
    return _norm(norms)


def _norms_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    """A vector with the same norm: the norm of each row, or a short tensor's elements."""
    size = tensor.shape.num_elements()
    if size <= _LONGEST_ROW:
        return tf.reshape(tensor, [size])
    if size == tensor.shape[-1]:
        padded = tf.pad(tf.reshape(tensor, [size]), [[0, -size % _LONGEST_ROW]])
        tensor = tf.reshape(padded, [-1, _LONGEST_ROW])
    return tf.reshape(_norm(tensor), [-1])


def _norm(tensor: tf.Tensor) -> tf.Tensor:
    """The norms along the last axis; XLA has no reduce_euclidean_norm."""
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=-1))
