"""Optimizer slots sharded over ranks: ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1).

Each rank keeps the slots of its part of every variable. It receives the summed gradients of that
part and updates it; then all ranks gather the parts of the weights. An optimizer may also assign
owners to variables: these are not divided, only the owner has their slots, and all ranks have their
whole gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.ranks.ranks import Gradient, Part, Ranks, part_of
from bert_tf.update.kernels import Kernels
from bert_tf.update.optimizers.row import FLOAT32_BYTES, OptimizerRow


@dataclasses.dataclass(frozen=True)
class SlotPart:
    """This rank's part of a slot.

    Attributes:
      name: the slot's name in checkpoints.
      shape: shape of the whole slot, which is that of its weight.
      part: which elements this rank has.
      variable: float32, a vector or, if this rank owns the slot, in its shape. It is empty if
        another rank owns the slot, but exists nevertheless: TensorFlow would merge the collective
        operations on several constants that are equal on one rank but not on their owner.
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    variable: tf.Variable


class Shards:
    """This rank's parts, and the communication of ranks about them.

    Attributes:
      ranks: the ranks that the slots are sharded over.
      slots: this rank's parts of all slots, in an order that is the same on all ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Creates no slots yet."""
        self.ranks = ranks
        self.slots: list[SlotPart] = []
        self._slots_of: dict[str, tuple[tf.Variable, ...]] = {}
        # A variable's part of the weights, in the form that update operations modify. It exists
        # only during an update.
        self._weights: dict[str, tf.Variable] = {}
        self._sums = 0

    def create(
        self, variable: tf.Variable, slot_names: Sequence[str], owner: int | None = None
    ) -> None:
        """Creates this rank's parts of a variable's slots, once; an ``owner`` has all of them."""
        name = variable.op.name
        if name in self._slots_of:
            return
        shape = tuple(variable.shape.as_list())
        size = math.prod(shape)
        if owner is None:
            part = part_of(size, self.ranks.rank, self.ranks.world_size)
            weights = _variable([part.size], f"{name}/part", [])
            self._weights[name] = weights
        else:
            part = Part(0, size if owner == self.ranks.rank else 0)
        own_shape = shape if owner is not None and part.size else [part.size]
        slots = [
            _variable(own_shape, f"{name}/{slot}", [tf.GraphKeys.LOCAL_VARIABLES])
            for slot in slot_names
        ]
        self.slots += [
            SlotPart(f"{name}/{slot}", shape, part, own) for slot, own in zip(slot_names, slots)
        ]
        self._slots_of[name] = tuple(slots) if owner in (None, self.ranks.rank) else ()

    def slots_of(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        """This rank's slots of a variable; none if another rank owns it."""
        return self._slots_of[variable.op.name]

    def is_divided(self, variable: tf.Variable) -> bool:
        """Whether the variable is divided among ranks, rather than owned by one."""
        return variable.op.name in self._weights

    def updated(self, variable: tf.Variable) -> tf.Variable:
        """What this rank updates: its part of a variable, or all of it if that has an owner."""
        return self._weights.get(variable.op.name, variable)

    def sum_gradients(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[tf.Variable],
        *,
        complete_at_once: bool,
    ) -> list[tf.Tensor]:
        """Sums gradients over ranks, for the parts that this rank updates."""
        pairs = list(zip(gradients, variables))
        divided = [g for g, v in pairs if self.is_divided(v)]
        owned = [(g, v) for g, v in pairs if not self.is_divided(v)]
        parts = iter(self.ranks.sum_gradient_parts(divided, complete_at_once=complete_at_once))
        whole = iter(())
        if owned:
            whole = iter(self.ranks.sum_gradients(*zip(*owned), complete_at_once=complete_at_once))
        return [next(parts if self.is_divided(v) else whole) for v in variables]

    def global_norm(
        self, kernels: Kernels, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> tf.Tensor:
        """The global norm of the gradients from :meth:`sum_gradients`, a float32 scalar."""
        pairs = list(zip(gradients, variables))
        parts = [g for g, v in pairs if self.is_divided(v)]
        whole = [g for g, v in pairs if not self.is_divided(v)]
        total = tf.zeros([], tf.float64)
        if parts:
            total += self.sum_over_parts(tf.reduce_sum(kernels.sums_of_squares(parts)))
        if whole:
            total += tf.reduce_sum(kernels.sums_of_squares(whole))
        return tf.cast(tf.sqrt(total), tf.float32)

    def norms(
        self, kernels: Kernels, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> tf.Tensor:
        """The norm of each of these gradients, float32 [variables]. Collective."""
        squares = kernels.sums_of_squares(gradients)
        is_divided = tf.constant([self.is_divided(variable) for variable in variables])
        zeros = tf.zeros_like(squares)
        of_parts = self.sum_over_parts(tf.where_v2(is_divided, squares, zeros))
        return tf.cast(tf.sqrt(tf.where_v2(is_divided, of_parts, squares)), tf.float32)

    def sum_over_parts(self, sums: tf.Tensor) -> tf.Tensor:
        """Adds up sums over parts of variables, over all ranks. Collective."""
        self._sums += 1
        return self.ranks.sum_over_ranks(sums, name=f"sums_of_parts_{self._sums}")

    def take_parts(self, variables: Sequence[tf.Variable]) -> list[tf.Operation]:
        """Copies this rank's parts of the weights to the variables that updates modify."""
        taken = []
        for variable in filter(self.is_divided, variables):
            part = part_of(variable.shape.num_elements(), self.ranks.rank, self.ranks.world_size)
            values = tf.reshape(variable.read_value(), [-1])[part.start : part.end]
            taken.append(self.updated(variable).assign(values, read_value=False))
        return taken

    def gather_parts(self, variables: Sequence[tf.Variable]) -> list[tf.Operation]:
        """Writes all ranks' updated parts to the variables and frees the copies. Collective."""
        gathered = []
        for variable in filter(self.is_divided, variables):
            part = self.updated(variable)
            whole = self.ranks.concatenate(part.read_value(), name=f"{part.op.name}/gather")
            assign = variable.assign(tf.reshape(whole, variable.shape), read_value=False)
            with tf.control_dependencies([assign]):
                gathered.append(tf.raw_ops.DestroyResourceOp(resource=part.handle))
        return gathered


def _variable(shape: Sequence[int], name: str, collections: Sequence[str]) -> tf.Variable:
    return tf.Variable(
        tf.zeros(shape, tf.float32),
        trainable=False,
        collections=list(collections),
        use_resource=True,
        name=name,
    )


def slot_bytes_of_rank(
    row: OptimizerRow,
    shapes: Mapping[str, Sequence[int]],
    owners: Mapping[str, int],
    *,
    rank: int,
    world_size: int,
) -> int:
    """Bytes of a rank's parts of the slots of the weights in ``shapes``, name -> shape.

    ``owners`` maps the names of undivided weights to their owners.
    """
    elements = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        if name in owners:
            own = size * (owners[name] == rank)
        else:
            own = part_of(size, rank, world_size).size
        elements += own * len(row.slots_of(name, shape))
    return FLOAT32_BYTES * elements
