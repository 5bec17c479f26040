"""What all optimizers share: slots, decay mask, learning-rate factors, update count.

An update skipped by ``tf.cond`` changes neither variables nor slots nor the count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Callable, ClassVar, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.config.optimizers import optimizer_row
from bert_tf.ranks.distribution import Gradient, SingleProcess
from bert_tf.update.kernels import (
    Kernels,
    TensorFlowKernels,
    euclidean_norm,
    times,
    without_cast,
)
from bert_tf.update.shards import Shards
from bert_tf.update.state import create_count

DecayMask = Callable[[str], bool]
RateFactor = Callable[[str], float]

UPDATE_COUNT = "optimizer/update_count"

_WITHOUT_DECAY = re.compile(r"LayerNorm|layer_norm|bias")


def decays(variable_name: str) -> bool:
    """Google's mask: weight decay for everything except layer normalisation and biases."""
    return _WITHOUT_DECAY.search(variable_name) is None


def same_rate(variable_name: str) -> float:
    """The learning-rate factor if all variables have the same rate."""
    del variable_name
    return 1.0


def clip_factor(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """The factor that limits the global norm of gradients to ``clip_norm``.

    Args:
      norm: scalar, their global norm; must be finite, so check that first.
      clip_norm: positive; infinity disables clipping.
    """
    # Exactly 1 if there is nothing to clip.
    return tf.minimum(1.0, clip_norm / norm)


class Parameter(NamedTuple):
    """One variable in an update.

    Attributes:
      variable: float32 resource variable; where ranks share the state, this rank's part of one, a
        vector (``Optimizer.name_of`` is the name of the whole).
      slots: float32 variables of the same shape: those that the optimizer's row gives it, in order;
        none if another rank has them.
      gradient: dense, of the same shape.
      decays: whether weight decay applies.
    """

    variable: tf.Variable
    slots: tuple[tf.Variable, ...]
    gradient: tf.Tensor
    decays: bool


class Optimizer(tf.train.Optimizer):
    """Base class: a subclass defines the algorithm, :meth:`update`, and the name of its row.

    Args:
      learning_rate: scalar, a tensor or a number.
      weight_decay: weight-decay rate.
      decay_mask: maps a variable's name to whether the variable decays.
      rate_factor: maps a variable's name to its learning-rate factor; 0 freezes the variable, which
        then has no slots and is neither updated nor decayed.
      counts_updates: whether ``self.update_count`` is needed.
      kernels: the form of the arithmetic; None for TensorFlow's.
      ranks: the ranks among which an update may divide its work; None for a single one.
      shard_state: share out the slots over the ranks; without effect for a single one.
      product_type: the type of the update's matrix products.
      name: prefix of operation names.

    Attributes:
      registered_as: the name in ``bert_tf.config.optimizers.OPTIMIZERS``.
      ratio_kinds: the names of the trust ratios that each variable has in an update.
      kernels: the form of the arithmetic.
      ranks: the ranks of the job.
      shards: this rank's share of the slots; None if every rank has all.
      product_type: the type of matrix products.
      weight_decay: weight-decay rate.
      update_count: int64 scalar variable, applied updates so far; None if not needed.
    """

    registered_as: ClassVar[str]
    ratio_kinds: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        weight_decay: float = 0.01,
        decay_mask: DecayMask = decays,
        rate_factor: RateFactor = same_rate,
        counts_updates: bool = False,
        kernels: Kernels | None = None,
        ranks: SingleProcess | None = None,
        shard_state: bool = False,
        product_type: tf.DType = tf.float32,
        name: str,
    ):
        super().__init__(use_locking=False, name=name)
        self.kernels = kernels or TensorFlowKernels()
        self.ranks = ranks or SingleProcess()
        self.shards = Shards(self.ranks) if shard_state and self.ranks.world_size > 1 else None
        self.product_type = product_type
        self.weight_decay = weight_decay
        self.update_count: tf.Variable | None = None
        self._row = optimizer_row(self.registered_as)
        self._learning_rate = learning_rate
        self._decay_mask = decay_mask
        self._rate_factor = rate_factor
        self._counts_updates = counts_updates
        self._gradient_factor: tf.Tensor | None = None
        self._gradients: list[tuple[tf.Variable, tf.Tensor]] = []

    def update(self, parameters: Sequence[Parameter], learning_rate: tf.Tensor) -> tf.Operation:
        """Updates variables and slots by one step of the algorithm, with TensorFlow operations.

        ``learning_rate`` is a float32 scalar that applies to all these parameters.
        """
        raise NotImplementedError

    def native_update(
        self,
        operations: ModuleType,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> tf.Operation:
        """Like :meth:`update` with one of ``operations``; called only if the row has a native form.

        Gradients may be bfloat16, and must be multiplied by ``gradient_factor`` first.
        """
        raise NotImplementedError

    @classmethod
    def owners(cls, shapes: Mapping[str, Sequence[int]], world_size: int) -> dict[str, int]:
        """Weights that are not divided if ranks share the state, and the rank that has their slots.

        ``shapes`` are those of all trained weights, by name. By default every weight is divided.
        """
        del shapes, world_size
        return {}

    def trained(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        """The variables that are not frozen; the others need no gradients.

        Raises ValueError for a negative learning-rate factor.
        """
        return [variable for variable in variables if self._factor_of(variable)]

    def apply_gradients(
        self,
        grads_and_vars: Sequence[tuple[Gradient, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        *,
        factor: tf.Tensor | None = None,
        norm: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Updates variables with ``factor`` times their gradients; else like TensorFlow's method.

        ``factor`` is a float32 scalar, None for 1; native kernels apply it without an extra pass
        over the gradients. ``norm`` is the global norm of the gradients before ``factor``, if the
        caller knows it; an optimizer that needs it computes it otherwise. Where ranks share the
        state, gradients are those of ``shards.sum_gradients``.
        """
        del norm  # for optimizers that need it
        self._gradient_factor = factor
        pairs = [(gradient, v) for gradient, v in grads_and_vars if self._factor_of(v)]
        return super().apply_gradients(pairs, global_step, name)

    def trust_ratios(self, variables: Sequence[tf.Variable]) -> tf.Tensor:
        """Those of the update that :meth:`apply_gradients` added: float32 [kinds, variables].

        The kinds are ``ratio_kinds``; NaN for a variable that is not adapted.
        """
        return tf.zeros([0, len(variables)])

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the slots of the variables and the count; apply_gradients does so by itself."""
        self._create_slots(self.trained(variables))

    def apply_update(
        self,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Updates variables and slots with the form of the kernels; a factor of None is 1."""
        operations = self.kernels.operations
        if operations is None or not self._row.has_native_form:
            scaled = [p._replace(gradient=times(p.gradient, gradient_factor)) for p in parameters]
            return self.update(scaled, learning_rate)
        uncast = [p._replace(gradient=without_cast(p.gradient)) for p in parameters]
        factor = 1.0 if gradient_factor is None else gradient_factor
        return self.native_update(operations, uncast, learning_rate, factor)

    def global_norm(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> tf.Tensor:
        """The global norm of summed gradients, a float32 scalar; collective if state is shared."""
        if self.shards is None:
            return self.kernels.global_norm(gradients)
        return self.shards.global_norm(self.kernels, gradients, variables)

    def gradient_norms(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> tf.Tensor:
        """The norm of each summed gradient, float32 [variables]; collective if state is shared."""
        if self.shards is None:
            return tf.stack([self.kernels.global_norm([gradient]) for gradient in gradients])
        return self.shards.norms(self.kernels, gradients, variables)

    def norms(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The Euclidean norm of each tensor, over all its parts; collective if state is shared."""
        norms = [euclidean_norm([tensor]) for tensor in tensors]
        if self.shards is None:
            return norms
        squares = self.sum_over_parts(tf.square(tf.cast(tf.stack(norms), tf.float64)))
        return tf.unstack(tf.cast(tf.sqrt(squares), tf.float32), num=len(norms))

    def sum_over_parts(self, sums: tf.Tensor) -> tf.Tensor:
        """Sums over the parameters of an update, for the whole variables if these are parts."""
        return sums if self.shards is None else self.shards.sum_over_parts(sums)

    def name_of(self, variable: tf.Variable) -> str:
        """The name of a parameter's variable, or of the whole variable if it is a part."""
        return variable.op.name if self.shards is None else self.shards.name_of(variable)

    def _factor_of(self, variable: tf.Variable) -> float:
        factor = self._rate_factor(variable.op.name)
        if not factor >= 0:
            raise ValueError(f"the learning-rate factor of {variable.op.name} is {factor}")
        return factor

    def slots_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """The names of a variable's slots, in the order of the row."""
        return self._row.slots_of(variable.op.name, variable.shape.as_list())

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        if self.shards is None:
            for variable in var_list:
                for slot in self.slots_of(variable):
                    self._zeros_slot(variable, slot, slot)
        else:
            shapes = {variable.op.name: variable.shape.as_list() for variable in var_list}
            owners = self.owners(shapes, self.ranks.world_size)
            for variable in var_list:
                self.shards.create(variable, self.slots_of(variable), owners.get(variable.op.name))
        if self._counts_updates and self.update_count is None:
            # Not global_step: that belongs to the caller, who may set it or leave it out.
            self.update_count = create_count(UPDATE_COUNT)

    def _prepare(self) -> None:
        self._gradients = []

    def _resource_apply_dense(self, grad: tf.Tensor, variable: tf.Variable) -> tf.Operation:
        """Stores the gradient: all variables are updated together, in :meth:`_finish`."""
        self._gradients.append((variable, grad))
        return grad.op

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, variable: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        """Updates all rows: those without an index also decay and follow their momentum."""
        dense = tf.math.unsorted_segment_sum(grad, indices, variable.shape[0])
        return self._resource_apply_dense(dense, variable)

    def _finish(self, update_ops: Sequence[tf.Operation], name_scope: str) -> tf.Operation:
        del update_ops  # the gradients, which the update depends on anyway
        # Variables are grouped by learning rate, as an algorithm takes a single one; usually there
        # is one group.
        by_factor: dict[float, list[Parameter]] = {}
        for variable, gradient in self._gradients:
            parameter = self._parameter(variable, gradient)
            by_factor.setdefault(self._factor_of(variable), []).append(parameter)
        rate = tf.convert_to_tensor(self._learning_rate, tf.float32)
        variables = [variable for variable, _ in self._gradients]
        with tf.control_dependencies(self.shards.take_parts(variables) if self.shards else []):
            updates = [
                self.apply_update(
                    parameters, rate if factor == 1.0 else rate * factor, self._gradient_factor
                )
                for factor, parameters in by_factor.items()
            ]
        if self.shards is not None:
            with tf.control_dependencies(updates):
                updates = [*updates, *self.shards.gather_parts(variables)]
        if self.update_count is None:
            return tf.group(*updates, name=name_scope)
        # The updates read the count, so it may only change after them.
        with tf.control_dependencies(updates):
            return tf.group(self.update_count.assign_add(1), name=name_scope)

    def _parameter(self, variable: tf.Variable, gradient: tf.Tensor) -> Parameter:
        if self.shards is None:
            updated = variable
            slots = tuple(self.get_slot(variable, slot) for slot in self.slots_of(variable))
        else:
            updated, slots = self.shards.updated(variable), self.shards.slots_of(variable)
        return Parameter(updated, slots, gradient, self._decay_mask(variable.op.name))
