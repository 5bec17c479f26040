"""An optimizer in a graph: its rule with slots, decay mask, learning-rate factors, update count.

An update that ``tf.cond`` skips leaves the variables, the slots and the count unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.variables import create_count
from bert_tf.ranks.ranks import Ranks, SingleProcess
from bert_tf.update.gradients import Gradients
from bert_tf.update.kernels import Kernels, TensorFlowKernels, times, without_cast
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.optimizers.row import (
    Applied,
    Parameter,
    UpdateContext,
    apply_changes,
    euclidean_norm,
)

if TYPE_CHECKING:
    from bert_tf.update.shards import Shards

DecayMask = Callable[[str], bool]
RateFactor = Callable[[str], float]

UPDATE_COUNT = "optimizer/update_count"

_WITHOUT_DECAY = re.compile(r"LayerNorm|layer_norm|bias")


def decays(variable_name: str) -> bool:
    """Google's decay mask: everything decays except layer normalisation and biases."""
    return _WITHOUT_DECAY.search(variable_name) is None


class Optimizer:
    """A registered optimizer for the variables of a graph.

    Args:
      name: its name in ``bert_tf.update.optimizers.OPTIMIZERS``.
      learning_rate: scalar, a tensor or a number.
      weight_decay: weight-decay rate.
      decay_mask: maps a variable's name to whether the variable decays.
      rate_factor: maps a variable's name to its learning-rate factor; 0 freezes the variable, which
        then has no slots and is neither updated nor decayed.
      trained_from: maps a variable's name to the fraction of training from which on it is trained;
        before, its gradient is taken to be zero, and its slots stay as they are.
      progress: the fraction of training that is done, a float64 scalar.
      kernels: the implementation of the arithmetic; None for TensorFlow's.
      ranks: the ranks among which an update may divide its work; None for a single rank.
      shard_state: shard the slots over the ranks; has no effect with a single rank.
      product_type: dtype of the update's matrix products.
      options: options of the optimizer's row; omitted ones get their defaults.

    Raises UserError for an unknown name.

    Attributes:
      row: the registry row of ``name``.
      kernels: the implementation of the arithmetic.
      ranks: the ranks of the job.
      shards: this rank's part of the slots; None if every rank has all of them.
      product_type: dtype of matrix products.
      update_count: int64 scalar variable that counts applied updates; None if not needed.
    """

    def __init__(
        self,
        name: str,
        learning_rate: tf.Tensor | float,
        *,
        weight_decay: float = 0.01,
        decay_mask: DecayMask = decays,
        rate_factor: RateFactor = lambda _: 1.0,
        trained_from: RateFactor = lambda _: 0.0,
        progress: tf.Tensor | float = 0.0,
        kernels: Kernels | None = None,
        ranks: Ranks | None = None,
        shard_state: bool = False,
        product_type: tf.DType = tf.float32,
        **options: Any,
    ):
        self.row = optimizer_row(name)
        unknown = options.keys() - self.row.options.keys()
        if unknown:
            raise TypeError(f"{self.row.title} has no option {', '.join(sorted(unknown))}")
        self.kernels = kernels or TensorFlowKernels()
        self.ranks = ranks or SingleProcess()
        self.shards: Shards | None = None
        if shard_state and self.ranks.world_size > 1:
            from bert_tf.update.shards import Shards

            self.shards = Shards(self.ranks)
        self.product_type = product_type
        self.update_count: tf.Variable | None = None
        self._options = self.row.resolve(options)
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._decay_mask = decay_mask
        self._rate_factor = rate_factor
        self._trained_from = trained_from
        self._progress = progress
        self._slots: dict[str, tuple[tf.Variable, ...]] = {}
        self._owners: dict[str, int] = {}

    def trained(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        """The variables that are not frozen and therefore need gradients.

        Raises ValueError for a negative learning-rate factor.
        """
        return [variable for variable in variables if self._factor_of(variable)]

    def held_back(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> list[tf.Tensor]:
        """The gradients; zero for variables that are not trained yet."""
        starts = [self._trained_from(variable.op.name) for variable in variables]
        gates = {start: self._gate(start) for start in starts}
        return [times(value, gates[start]) for value, start in zip(gradients, starts)]

    def set_shapes(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        """Sets the static shapes of summed gradients, which communication may lose."""
        for gradient, variable in zip(gradients, variables):
            if self.shards is None or not self.shards.is_divided(variable):
                gradient.set_shape(variable.shape)

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange values within an update of the weights."""
        divides_work = self.row.choose_owners is not None and self.ranks.world_size > 1
        return divides_work or self.shards is not None

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the slots of the trained variables and the update count, once."""
        variables = self.trained(variables)
        shapes = {variable.op.name: variable.shape.as_list() for variable in variables}
        self._owners = self.row.owners(shapes, self.ranks.world_size)
        for variable in variables:
            name = variable.op.name
            slot_names = self.row.slots_of(name, shapes[name])
            if self.shards is not None:
                self.shards.create(variable, slot_names, self._owners.get(name))
            elif name not in self._slots:
                self._slots[name] = tuple(_zeros_like(variable, slot) for slot in slot_names)
        counts = self.row.counts_updates
        if counts is not None and counts(self._options) and self.update_count is None:
            # Not global_step: that belongs to the caller, who may assign it or not have one.
            self.update_count = create_count(UPDATE_COUNT)

    def slots_of(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        """This rank's slots of a trained variable, in the row's order."""
        if self.shards is not None:
            return self.shards.slots_of(variable)
        return self._slots[variable.op.name]

    def apply(self, gradients: Gradients, *, where: tf.Tensor | None = None) -> Applied:
        """Updates the gradients' variables, whose slots must have been created.

        Collective if optimizer state is sharded. With ``where``, a boolean scalar that is False,
        all values stay as they are; native operations and divided work do not take one.
        """
        variables = gradients.variables
        if self.row.prepare is not None:
            gradients = self.row.prepare(gradients, self._options)
        # Group variables by learning rate, since a rule takes a single one; usually there is just
        # one group.
        groups: dict[tuple[float, float], list[int]] = {}
        for number, variable in enumerate(variables):
            key = self._factor_of(variable), self._trained_from(variable.op.name)
            groups.setdefault(key, []).append(number)
        with tf.name_scope("apply_gradients"):
            rate = tf.convert_to_tensor(self._learning_rate, tf.float32)
            with tf.control_dependencies(self.shards.take_parts(variables) if self.shards else []):
                updates = [
                    self.update(
                        [self._parameter(variables[n], gradients.values[n]) for n in numbers],
                        times(rate if factor == 1.0 else rate * factor, self._gate(start)),
                        gradients.factor,
                        where,
                    )
                    for (factor, start), numbers in groups.items()
                ]
            steps = [update.operation for update in updates]
            if self.shards is not None:
                with tf.control_dependencies(steps):
                    steps += self.shards.gather_parts(variables)
            if self.update_count is not None:
                # The updates read the count, so it must only change after them.
                with tf.control_dependencies(steps):
                    count = 1 if where is None else tf.cast(where, tf.int64)
                    steps = [self.update_count.assign_add(count)]
            if not self.row.ratio_kinds:
                return Applied(tf.group(*steps))
            order = [number for numbers in groups.values() for number in numbers]
            in_groups = tf.concat([update.ratios for update in updates], axis=1)
            ratios = tf.gather(in_groups, np.argsort(order), axis=1)
            ratios.set_shape([len(self.row.ratio_kinds), len(variables)])
            return Applied(tf.group(*steps), ratios)

    def update(
        self,
        parameters: Sequence[Parameter],
        rate: tf.Tensor,
        factor: tf.Tensor | None = None,
        where: tf.Tensor | None = None,
    ) -> Applied:
        """Applies the rule to parameters with one learning rate, using the kernels' implementation.

        ``factor`` is a float32 scalar by which to multiply the gradients; None means 1. ``where``
        is as in :meth:`apply`.
        """
        context, operations = self._context(), self.kernels.operations
        if operations is not None and self.row.fused_rule is not None:
            uncast = [p._replace(gradient=without_cast(p.gradient)) for p in parameters]
            factor = 1.0 if factor is None else factor
            return self.row.fused_rule(operations, uncast, rate, factor, context, **self._options)
        scaled = [p._replace(gradient=times(p.gradient, factor)) for p in parameters]
        changes = self.row.rule(scaled, rate, context, **self._options)
        ratios = None
        if self.row.ratio_kinds:
            ratios = tf.stack([tf.stack(change.ratios) for change in changes], axis=1)
        return Applied(tf.group(*apply_changes(parameters, changes, where)), ratios)

    def global_norm(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> tf.Tensor:
        """The global norm of summed gradients, a float32 scalar; collective if state is sharded."""
        if self.shards is None:
            return self.kernels.global_norm(gradients)
        return self.shards.global_norm(self.kernels, gradients, variables)

    def gradient_norms(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> tf.Tensor:
        """The norm of each summed gradient, float32 [variables]; collective if state is sharded."""
        if self.shards is None:
            return tf.stack([self.kernels.global_norm([gradient]) for gradient in gradients])
        return self.shards.norms(self.kernels, gradients, variables)

    def _context(self) -> UpdateContext:
        count = self.update_count
        return UpdateContext(
            weight_decay=self._weight_decay,
            update_number=None if count is None else tf.cast(count.read_value() + 1, tf.float64),
            norms=self._norms,
            sum_over_parts=self._sum_over_parts,
            sums_of_squares=self.kernels.sums_of_squares,
            ranks=self.ranks,
            owners=self._owners,
            product_type=self.product_type,
        )

    def _norms(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        norms = [euclidean_norm([tensor]) for tensor in tensors]
        if self.shards is None:
            return norms
        squares = self.shards.sum_over_parts(tf.square(tf.cast(tf.stack(norms), tf.float64)))
        return tf.unstack(tf.cast(tf.sqrt(squares), tf.float32), num=len(norms))

    def _sum_over_parts(self, sums: tf.Tensor) -> tf.Tensor:
        return sums if self.shards is None else self.shards.sum_over_parts(sums)

    def _factor_of(self, variable: tf.Variable) -> float:
        factor = self._rate_factor(variable.op.name)
        if not factor >= 0:
            raise ValueError(f"the learning-rate factor of {variable.op.name} is {factor}")
        return factor

    def _gate(self, start: float) -> tf.Tensor | None:
        """1 from that fraction of training on and 0 before; None for what is always trained."""
        return tf.cast(self._progress >= start, tf.float32) if start else None

    def _parameter(self, variable: tf.Variable, gradient: tf.Tensor) -> Parameter:
        name = variable.op.name
        return Parameter(
            name,
            variable if self.shards is None else self.shards.updated(variable),
            gradient,
            self.slots_of(variable),
            self._decay_mask(name),
        )


def _zeros_like(variable: tf.Variable, slot: str) -> tf.Variable:
    """Creates a slot for a variable; its checkpoint name derives from the variable's name."""
    return tf.get_variable(
        f"{variable.op.name}/{slot}",
        shape=variable.shape,
        dtype=tf.float32,
        initializer=tf.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )
