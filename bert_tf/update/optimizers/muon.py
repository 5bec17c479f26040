"""Muon for the kernels of the encoder layers, AdamW for everything else.

A kernel's update is its Nesterov momentum, orthogonalised (Jordan et al. 2024, "Muon: an optimizer
for hidden layers in neural networks") and scaled to the root mean square of AdamW's updates (Liu et
al. 2025, "Muon is scalable for LLM training"), so that both parts use the same learning rate and
decay. The ranks divide the matrices among themselves and exchange the results, so their weights
stay bit-equal. If optimizer state is sharded, a matrix's momentum is on the rank that
orthogonalises it, and the rest is divided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_tf.update.optimizers import adam
from bert_tf.update.optimizers.row import (
    Applied,
    Change,
    OptimizerRow,
    Parameter,
    Shapes,
    UpdateContext,
    apply_changes,
    euclidean_norm,
)
from bert_tf.util.options import Interval, Option
from bert_tf.util.tensorflow import tf

MOMENTUM = "muon_m"
_KERNEL_OF_A_LAYER = re.compile(r"bert/encoder/(.*/)?kernel")

# Coefficients of the iteration x <- (a + b x x' + c (x x')**2) x (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5

# Scales an orthogonalised matrix to the root mean square of AdamW's updates (Liu et al. 2025).
_UPDATE_RMS = 0.2


def slots_of(name: str, shape: Sequence[int]) -> tuple[str, ...]:
    """The slots of a weight: a momentum for layer kernels, AdamW's slots for everything else.

    Embeddings and heads, whose rows or columns represent tokens, are not among the matrices that
    Muon was designed for (Jordan et al. 2024).
    """
    is_matrix = len(shape) == 2 and _KERNEL_OF_A_LAYER.fullmatch(name) is not None
    return (MOMENTUM,) if is_matrix else adam.SLOTS


def owners(shapes: Shapes, world_size: int) -> dict[str, int]:
    """Assigns to each matrix the rank that orthogonalises it."""
    matrices = [name for name, shape in shapes.items() if slots_of(name, shape) == (MOMENTUM,)]
    parts = share_out([_operations(shapes[name]) for name in matrices], world_size)
    return {matrices[i]: rank for rank, part in enumerate(parts) for i in part}


def muon(
    parameters: Sequence[Parameter],
    rate: tf.Tensor,
    context: UpdateContext,
    *,
    momentum: float,
    **of_adam: Any,
) -> list[Change]:
    """Muon's steps for the matrices, AdamW's for everything else."""
    matrices, others = _divided(parameters, context)
    changes = {
        **_by_name(matrices, _matrix_changes(matrices, rate, context, momentum)),
        **_by_name(others, adam.adam_w(others, rate, context, **of_adam)),
    }
    return [changes[parameter.name] for parameter in parameters]


def fused_muon(
    operations: ModuleType,
    parameters: Sequence[Parameter],
    rate: tf.Tensor,
    factor: tf.Tensor | float,
    context: UpdateContext,
    *,
    momentum: float,
    **of_adam: Any,
) -> Applied:
    """Like :func:`muon`, but with AdamW's native operation; there is none for the matrices."""
    matrices, others = _divided(parameters, context)
    scaled = [p._replace(gradient=tf.cast(p.gradient, tf.float32) * factor) for p in matrices]
    updates = apply_changes(matrices, _matrix_changes(scaled, rate, context, momentum))
    if others:
        fused = adam.fused_adam_w(operations, others, rate, factor, context, **of_adam)
        updates.append(fused.operation)
    return Applied(tf.group(*updates))


def _divided(
    parameters: Sequence[Parameter], context: UpdateContext
) -> tuple[list[Parameter], list[Parameter]]:
    """Splits parameters into the matrices to orthogonalise and all others."""
    return (
        [parameter for parameter in parameters if parameter.name in context.owners],
        [parameter for parameter in parameters if parameter.name not in context.owners],
    )


def _by_name(parameters: Sequence[Parameter], changes: Sequence[Change]) -> dict[str, Change]:
    return {parameter.name: change for parameter, change in zip(parameters, changes)}


def _matrix_changes(
    matrices: Sequence[Parameter], rate: tf.Tensor, context: UpdateContext, momentum: float
) -> list[Change]:
    if not matrices:
        return []
    means: dict[str, tuple[tf.Tensor, ...]] = {}
    momenta: dict[str, tf.Tensor] = {}
    for name, _, gradient, slots, _ in matrices:
        # If another rank owns the momentum, there is no slot here.
        means[name] = tuple(momentum * slot + (1.0 - momentum) * gradient for slot in slots)
        for mean in means[name]:
            momenta[name] = momentum * mean + (1.0 - momentum) * gradient
    directions = _orthogonalise_all([p.variable for p in matrices], momenta, context)
    changes = []
    for (name, variable, _, _, decays), direction in zip(matrices, directions):
        scale = _UPDATE_RMS * math.sqrt(max(variable.shape.as_list()))
        step = rate * scale * tf.cast(direction, tf.float32)
        if decays:
            step += rate * context.weight_decay * variable
        changes.append(Change(step, means[name]))
    return changes


def _orthogonalise_all(
    weights: Sequence[tf.Variable], momenta: Mapping[str, tf.Tensor], context: UpdateContext
) -> list[tf.Tensor]:
    """The orthogonalised momentum of each weight, computed by its owner, in ``product_type``.

    ``momenta`` contains at least this rank's weights, by name.
    """
    # One by one: stacking equal shapes for batched products was not faster on CPUs, and this way
    # a matrix's result does not depend on the other matrices of its rank.
    ranks, product_type = context.ranks, context.product_type
    order = sorted((weight.op.name for weight in weights), key=context.owners.__getitem__)
    own = [name for name in order if context.owners[name] == ranks.rank]
    found = [orthogonalise(momenta[name], product_type) for name in own]
    if ranks.world_size > 1:
        shapes = {weight.op.name: weight.shape for weight in weights}
        empty = tf.zeros([0], product_type)  # for a rank that owns no matrix
        sent = tf.concat([empty, *(tf.reshape(matrix, [-1]) for matrix in found)], axis=0)
        received = ranks.concatenate(sent, name="muon_directions")
        pieces = tf.split(received, [shapes[name].num_elements() for name in order])
        found = [tf.reshape(piece, shapes[name]) for name, piece in zip(order, pieces)]
    by_name = dict(zip(order, found))
    return [by_name[weight.op.name] for weight in weights]


def orthogonalise(matrix: tf.Tensor, product_type: tf.DType) -> tf.Tensor:
    """Replaces a matrix's singular values by values of about 1; zero stays zero.

    Five Newton-Schulz iterations (Jordan et al. 2024) bring them to between 0.68 and 1.13, unless
    they were much smaller than the largest one. ``matrix`` is float32 with a static shape;
    ``product_type`` is the dtype of the products and of the result.
    """
    rows, columns = matrix.shape.as_list()
    is_tall = rows > columns
    x = tf.transpose(matrix) if is_tall else matrix  # so that its Gram matrix is the smaller one
    # After division by the Frobenius norm, no singular value exceeds 1.
    x = tf.cast(tf.math.divide_no_nan(x, euclidean_norm([matrix])), product_type)
    for _ in range(_ITERATIONS):
        square = tf.matmul(x, x, transpose_b=True)
        polynomial = _B * square + _C * tf.matmul(square, square)
        # Add a to the diagonal instead of a * x to the product, which is a larger matrix.
        x = tf.matmul(tf.linalg.set_diag(polynomial, _A + tf.linalg.diag_part(polynomial)), x)
    return tf.transpose(x) if is_tall else x


def share_out(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Assigns items to ``parts``, the costliest first, each to the part with the least cost yet.

    Returns the indices of each part's items; a part may be empty.
    """
    chosen: list[list[int]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        least = totals.index(min(totals))
        chosen[least].append(item)
        totals[least] += costs[item]
    return chosen


def _operations(shape: Sequence[int]) -> int:
    """A number proportional to the operations of one iteration."""
    small, large = sorted(shape)
    return 2 * small**2 * large + small**3


ROW = OptimizerRow(
    title="Muon",
    rule=muon,
    fused_rule=fused_muon,
    slots=(MOMENTUM, *adam.SLOTS),
    choose_slots=slots_of,
    options={
        "momentum": Option(
            0.95,
            flag="muon_momentum",
            help_text="Muon: decay rate of the mean of the layer kernels' gradients.",
            bounds=Interval(0, 1, open_high=True),
        ),
        "bias_correction": adam.BIAS_CORRECTION,
        **adam.MOMENTS,
    },
    counts_updates=adam.corrects_bias,
    can_be_sharded=True,
    choose_owners=owners,
)
