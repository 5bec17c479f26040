"""A single rank, without communication, and a stand-in for ranks that have not been started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.ranks.ranks import Gradient, Ranks, as_tables


class SingleProcess(Ranks):
    """The only rank of its job; sums, copies and lists are of one."""

    def sum_gradients(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[tf.Variable],
        *,
        complete_at_once: bool = False,
        most_rows: int | None = None,
    ) -> list[tf.Tensor]:
        """See :class:`Ranks`."""
        del variables, complete_at_once, most_rows
        return as_tables(gradients)

    def sum_gradient_parts(
        self, gradients: Sequence[Gradient], *, complete_at_once: bool = False
    ) -> list[tf.Tensor]:
        """See :class:`Ranks`."""
        del complete_at_once
        return [tf.reshape(gradient, [-1]) for gradient in as_tables(gradients)]

    def sum_over_ranks(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """See :class:`Ranks`."""
        return tf.identity(tensor, name=name)

    def from_chief(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """See :class:`Ranks`."""
        return tf.identity(tensor, name=name)

    def concatenate(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """See :class:`Ranks`."""
        return tf.identity(tensor, name=name)

    def broadcast_hooks(self) -> list[tf.train.SessionRunHook]:
        """See :class:`Ranks`."""
        return []

    def gather(self, value: Any) -> list[Any]:
        """See :class:`Ranks`."""
        return [value]


class PlannedRanks(SingleProcess):
    """A stand-in for rank 0 of a job of ``world_size`` ranks; it communicates with no others."""

    def __init__(
        self, world_size: int, *, local_size: int = 1, num_threads: int | None = None
    ) -> None:
        """``local_size`` ranks are on the same host."""
        self.world_size, self.local_size = world_size, local_size
        super().__init__(num_threads)
