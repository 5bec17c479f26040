"""All ranks of a job, as seen from one of them: the interface of all communication libraries.

Methods that return tensors add collective operations to the current graph: every rank must build
and run them in the same order. ``gather`` and ``broadcast`` work immediately, on Python values,
outside any graph.

To add a communication library, write a module like ``horovod.py`` and add a row to ``connect.py``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Union

import tensorflow.compat.v1 as tf

from bert_tf.util.environment import available_cores

Gradient = Union[tf.Tensor, tf.IndexedSlices]


class Ranks(abc.ABC):
    """One or many ranks with the same methods, so that callers need not know how many there are.

    Attributes:
      rank, local_rank: this rank's number in the job and on its host.
      world_size, local_size: the number of ranks in the job and on this host.
      threads: number of compute threads of this rank.
    """

    rank = 0
    local_rank = 0
    world_size = 1
    local_size = 1

    def __init__(self, num_threads: int | None = None) -> None:
        """``num_threads`` is for this rank; None divides the host's cores among its ranks."""
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
        """Sums the ranks' contributions to the gradients of the global batch.

        Contributions are already divided by the weight of the global batch, so the gradients are
        their sum, which does not grow with the number of ranks: if float16 can represent the mean,
        a sum over any number of ranks does not overflow.

        Args:
          gradients: this rank's contributions, dense or tf.IndexedSlices.
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
        """This rank's part (``part_of``) of the result of :meth:`sum_gradients`: vectors."""

    @abc.abstractmethod
    def sum_over_ranks(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The sum of ``tensor`` over ranks; ``name`` must be unique in the graph."""

    @abc.abstractmethod
    def from_chief(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Rank 0's tensor; dtype and shape must be the same on all ranks.

        ``name`` must be unique in the graph.
        """

    @abc.abstractmethod
    def concatenate(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Concatenates the vectors of all ranks in order of rank; any dtype, any lengths.

        ``name`` must be unique in the graph.
        """

    @abc.abstractmethod
    def broadcast_hooks(self) -> list[tf.train.SessionRunHook]:
        """Hooks that broadcast rank 0's variables when a session starts."""

    @abc.abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Gathers one value from each rank, in order of rank, on every rank."""

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""
        return self.gather(value)[0]

    def once_on_each_host(self, action: Callable[[], object]) -> None:
        """Calls ``action`` on rank 0 and then on the first rank of every other host.

        For files that all ranks need: a host that shares rank 0's disk will find them there.
        """
        turn = 0 if self.is_chief else 1 if self.local_rank == 0 else None
        for number in range(2):
            if number == turn:
                action()
            self.gather(None)


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
        """The tensor itself, which is all of a single rank's."""
        return tf.identity(tensor, name=name)

    from_chief = concatenate = sum_over_ranks

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


def as_tables(gradients: Sequence[Gradient]) -> list[tf.Tensor]:
    """Converts gradients to dense ones, adding the rows of a looked-up table at their indices."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def threads_per_rank(local_size: int) -> int:
    """The number of cores per rank of a host.

    Otherwise every rank would start one thread per core and be slower than a single process
    (horovod issue 2804 measures a factor of three).
    """
    return max(1, available_cores() // local_size)


class Part(NamedTuple):
    """One rank's contiguous elements of a flattened tensor.

    Attributes:
      start: index of the first element.
      size: number of elements; may be 0.
    """

    start: int
    size: int

    @property
    def end(self) -> int:
        """The index after the last element."""
        return self.start + self.size


def part_of(size: int, rank: int, world_size: int) -> Part:
    """A rank's part of ``size`` elements, divided like Horovod's reduce-scatter.

    Parts are contiguous and in order of rank; the first ``size % world_size`` parts have one
    element more than the others.
    """
    least, more = divmod(size, world_size)
    return Part(rank * least + min(rank, more), least + (rank < more))
