"""The Muon optimizer: orthogonalised momentum for the matrices of the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.config.optimizers import MUON_MOMENTUM, muon_slots
from bert_tf.update.kernels import euclidean_norm, times
from bert_tf.update.optimizers.adam import AdamW
from bert_tf.update.optimizers.base import Parameter

# Of the iteration x <- (a + b x x' + c (x x')**2) x (Jordan et al. 2024, "Muon: an optimizer for
# hidden layers in neural networks").
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5

# Gives an orthogonalised matrix the root mean square of AdamW's updates (Liu et al. 2025, "Muon is
# scalable for LLM training").
_UPDATE_RMS = 0.2


class Muon(AdamW):
    """Muon for the kernels of the layers (``config.optimizers.muon_slots``), AdamW for the rest.

    The update of a kernel is its Nesterov momentum, orthogonalised and scaled to the root mean
    square of AdamW's updates, so that both parts share learning rate and decay. The ranks divide
    the matrices among them and exchange the results, so their weights stay bit-equal. Where they
    share the state, a matrix's momentum is on the rank that orthogonalises it, and the rest is
    divided. Further arguments are those of :class:`AdamW`.

    Args:
      learning_rate: scalar, a tensor or a number.
      momentum: decay rate of the mean of gradients of kernels.
      name: prefix of operation names.
    """

    registered_as = "muon"

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        momentum: float = 0.95,
        name: str = "Muon",
        **shared: Any,
    ):
        super().__init__(learning_rate, name=name, **shared)
        self._momentum = momentum
        self._owners: dict[str, int] = {}

    @classmethod
    def owners(cls, shapes: Mapping[str, Sequence[int]], world_size: int) -> dict[str, int]:
        """The rank that orthogonalises each matrix."""
        matrices = [n for n, shape in shapes.items() if muon_slots(n, shape) == (MUON_MOMENTUM,)]
        parts = share_out([_operations(shapes[name]) for name in matrices], world_size)
        return {matrices[i]: rank for rank, part in enumerate(parts) for i in part}

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_slots(var_list)
        shapes = {variable.op.name: variable.shape.as_list() for variable in var_list}
        self._owners = self.owners(shapes, self.ranks.world_size)

    def update(self, parameters: Sequence[Parameter], learning_rate: tf.Tensor) -> tf.Operation:
        """Updates the matrices, and all else as AdamW does."""
        matrices, others = self._divided(parameters)
        steps = self._update_matrices(matrices, learning_rate)
        return tf.group(*steps, super().update(others, learning_rate))

    def native_update(
        self,
        operations: ModuleType,
        parameters: Sequence[Parameter],
        learning_rate: tf.Tensor,
        gradient_factor: tf.Tensor | float,
    ) -> tf.Operation:
        """Like :meth:`update`, with the native operation of AdamW; matrices have none."""
        matrices, others = self._divided(parameters)
        scaled = [
            p._replace(gradient=times(tf.cast(p.gradient, tf.float32), gradient_factor))
            for p in matrices
        ]
        steps = self._update_matrices(scaled, learning_rate)
        if others:
            steps.append(super().native_update(operations, others, learning_rate, gradient_factor))
        return tf.group(*steps)

    def _divided(self, parameters: Sequence[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
        """The matrices that are orthogonalised, and all other parameters."""
        return (
            [p for p in parameters if p.variable.op.name in self._owners],
            [p for p in parameters if p.variable.op.name not in self._owners],
        )

    def _update_matrices(
        self, matrices: Sequence[Parameter], learning_rate: tf.Tensor
    ) -> list[tf.Operation]:
        if not matrices:
            return []
        steps, momenta = [], {}
        for weight, slots, gradient, _ in matrices:
            for slot in slots:  # there is none where another rank has the momentum
                mean = self._momentum * slot + (1.0 - self._momentum) * gradient
                steps.append(slot.assign(mean, read_value=False))
                momenta[weight.op.name] = self._momentum * mean + (1.0 - self._momentum) * gradient
        directions = self._orthogonalise_all([p.variable for p in matrices], momenta)
        for parameter, direction in zip(matrices, directions):
            weight = parameter.variable
            scale = _UPDATE_RMS * math.sqrt(max(weight.shape.as_list()))
            change = learning_rate * scale * tf.cast(direction, tf.float32)
            if parameter.decays:
                change += learning_rate * self.weight_decay * weight
            steps.append(weight.assign_sub(change, read_value=False))
        return steps

    def _orthogonalise_all(
        self, weights: Sequence[tf.Variable], momenta: Mapping[str, tf.Tensor]
    ) -> list[tf.Tensor]:
        """The orthogonalised momentum of each weight, computed by its owner, in the type of
        products.

        ``momenta`` has at least those of this rank's weights, by name.
        """
        # One by one: stacking equal shapes for batched products was not faster on CPUs, and a
        # matrix's result does not depend on which others its rank has.
        ranks = self.ranks
        order = sorted((weight.op.name for weight in weights), key=self._owners.get)
        own = [name for name in order if self._owners[name] == ranks.rank]
        found = [orthogonalise(momenta[name], self.product_type) for name in own]
        if ranks.world_size > 1:
            shapes = {weight.op.name: weight.shape for weight in weights}
            empty = tf.zeros([0], self.product_type)  # of a rank without any matrix
            sent = tf.concat([empty, *(tf.reshape(matrix, [-1]) for matrix in found)], axis=0)
            received = ranks.concatenate(sent, name="muon_directions")
            pieces = tf.split(received, [shapes[name].num_elements() for name in order])
            found = [tf.reshape(piece, shapes[name]) for name, piece in zip(order, pieces)]
        by_name = dict(zip(order, found))
        return [by_name[weight.op.name] for weight in weights]


def orthogonalise(matrix: tf.Tensor, product_type: tf.DType) -> tf.Tensor:
    """Replaces the singular values of a matrix by values of about 1; zero stays zero.

    Five Newton-Schulz iterations (Jordan et al. 2024) leave them between 0.68 and 1.13, if they
    were not much smaller than the largest one.

    Args:
      matrix: [rows, columns] float32, of static shape.
      product_type: the type of the products and of the result.
    """
    rows, columns = matrix.shape.as_list()
    is_tall = rows > columns
    x = tf.transpose(matrix) if is_tall else matrix  # the product with itself is the smaller one
    # Divided by their Frobenius norm, no singular value is above 1.
    x = tf.cast(tf.math.divide_no_nan(x, euclidean_norm([matrix])), product_type)
    for _ in range(_ITERATIONS):
        square = tf.matmul(x, x, transpose_b=True)
        polynomial = _B * square + _C * tf.matmul(square, square)
        # a is added to the diagonal rather than a * x to the product, which is a larger matrix.
        x = tf.matmul(tf.linalg.set_diag(polynomial, _A + tf.linalg.diag_part(polynomial)), x)
    return tf.transpose(x) if is_tall else x


def share_out(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Divides items among ``parts``, the most expensive first, each to the part with the least.

    Returns the numbers of the items of each part, which may be empty.
    """
    chosen: list[list[int]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        least = totals.index(min(totals))
        chosen[least].append(item)
        totals[least] += costs[item]
    return chosen


def _operations(shape: Sequence[int]) -> int:
    """Proportional to the operations of one iteration."""
    small, large = sorted(shape)
    return 2 * small**2 * large + small**3
