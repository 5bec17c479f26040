"""All ranks of a job, as this one sees them: the interface of every way to communicate.

Methods that return tensors add collective operations to the current graph: every rank must build
and run them in the same order. ``gather`` and ``broadcast`` work immediately, on plain Python
values, outside any graph.

To add a communication library, write a module beside ``horovod.py`` and a row in ``connect.py``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Callable, Union

import tensorflow.compat.v1 as tf

from bert_tf.util.environment import available_cores

Gradient = Union[tf.Tensor, tf.IndexedSlices]


class Ranks(abc.ABC):
    """One or many ranks, with the same methods, so that callers need not check how many there are.

    Attributes:
      rank, local_rank: the number of this rank among all, and among those of its host.
      world_size, local_size: how many there are, in all and on this host.
      threads: of this rank, for computing.
    """

    rank = 0
    local_rank = 0
    world_size = 1
    local_size = 1

    def __init__(self, num_threads: int | None = None) -> None:
        """``num_threads`` are those of this rank; None uses its share of the host's cores."""
        self.threads = num_threads or threads_per_rank(self.local_size)

    @property
    def is_chief(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.rank == 0

    @abc.abstractmethod
    def sum_gradients(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[tf.Variable],
        *,
        complete_at_once: bool = False,
        most_rows: int | None = None,
    ) -> list[tf.Tensor]:
        """The gradients of the global batch, from each rank's share.

        Shares are already divided by the weight of the global batch, so that the gradients are
        their sum, which does not grow with the number of ranks: float16 does not overflow in a sum
        over any number of ranks if it can represent the mean.

        Args:
          gradients: shares, dense or tf.IndexedSlices.
          variables: the corresponding variables.
          complete_at_once: whether all become complete at the same time, like sums over micro
            batches, rather than one by one during a backward pass.
          most_rows: maximum number of rows of tf.IndexedSlices of unknown length.

        Returns:
          Dense gradients.
        """

    @abc.abstractmethod
    def sum_gradient_parts(
        self, gradients: Sequence[Gradient], *, complete_at_once: bool = False
    ) -> list[tf.Tensor]:
        """This rank's part (``parts.part_of``) of what :meth:`sum_gradients` returns: vectors."""

    @abc.abstractmethod
    def sum_over_ranks(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """``tensor`` summed over ranks; ``name`` must be unique in the graph."""

    @abc.abstractmethod
    def from_chief(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The tensor of rank 0; all ranks' are of the same type and shape.

        ``name`` must be unique in the graph.
        """

    @abc.abstractmethod
    def concatenate(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The vectors of all ranks, in the order of ranks, of any type and each of any length.

        ``name`` must be unique in the graph.
        """

    @abc.abstractmethod
    def broadcast_hooks(self) -> list[tf.train.SessionRunHook]:
        """Hooks that broadcast the variables of rank 0 when a session starts."""

    @abc.abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Gathers one value from each rank, in the order of ranks, on every rank."""

    def broadcast(self, value: Any) -> Any:
        """Returns the value of rank 0 on every rank."""
        return self.gather(value)[0]

    def once_on_each_host(self, action: Callable[[], object]) -> None:
        """Calls ``action`` on rank 0 and then on the first rank of every other host.

        For files that all ranks need: a host that shares rank 0's disk will find them.
        """
        turn = 0 if self.is_chief else 1 if self.local_rank == 0 else None
        for number in range(2):
            if number == turn:
                action()
            self.gather(None)


def as_tables(gradients: Sequence[Gradient]) -> list[tf.Tensor]:
    """Dense gradients; the rows of a looked-up table are added at their indices."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def threads_per_rank(local_size: int) -> int:
    """A rank's share of its host's cores.

    Otherwise every rank would start as many threads as there are cores, and be slower than a single
    process (horovod issue 2804 measures a factor of three).
    """
    return max(1, available_cores() // local_size)
