"""A common interface for one or many ranks: the only module that imports Horovod.

:class:`SingleProcess` and :class:`HorovodRanks` have the same methods, so that callers need not
check how many ranks there are. Methods that return tensors add collective operations to the current
graph: every rank must build and run them in the same order. ``gather`` and ``broadcast`` work
immediately, on plain Python values, outside any graph.
"""

from __future__ import annotations

import os
import types
from collections.abc import Sequence
from typing import Any, Callable, Union

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import CommunicationSettings
from bert_tf.ranks.communication import (
    MPI_ENVIRONMENT,
    check_adasum,
    horovod_environment,
    is_sent_as_rows,
    number_of_groups,
)
from bert_tf.ranks.launched import (
    check_all_met,
    check_alone,
    end_with_launcher,
    is_launched,
)
from bert_tf.ranks.parts import part_of
from bert_tf.util.environment import available_cores
from bert_tf.util.errors import UserError

Gradient = Union[tf.Tensor, tf.IndexedSlices]

_HOROVOD_DEFAULTS = CommunicationSettings()


class SingleProcess:
    """A single rank, without communication."""

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
          their sum, which does not grow with the number of ranks: float16 does not overflow in a
          sum over any number of ranks if it can represent the mean.

        Args:
          gradients: shares, dense or tf.IndexedSlices.
          variables: the corresponding variables.
          complete_at_once: whether all become complete at the same time, like sums over micro
            batches, rather than one by one during a backward pass.
          most_rows: maximum number of rows of tf.IndexedSlices of unknown length.

        Returns:
          Dense gradients.
        """
        del variables, complete_at_once, most_rows
        return as_tables(gradients)

    def sum_gradient_parts(
        self, gradients: Sequence[Gradient], *, complete_at_once: bool = False
    ) -> list[tf.Tensor]:
        """This rank's part (``parts.part_of``) of what :meth:`sum_gradients` returns: vectors."""
        del complete_at_once
        return [tf.reshape(gradient, [-1]) for gradient in as_tables(gradients)]

    def sum_over_ranks(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """``tensor`` summed over ranks; ``name`` must be unique in the graph."""
        return tf.identity(tensor, name=name)

    def from_chief(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The tensor of rank 0; all ranks' are of the same type and shape.

        ``name`` must be unique in the graph.
        """
        return tf.identity(tensor, name=name)

    def concatenate(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The vectors of all ranks, in the order of ranks, of any type and each of any length.

        ``name`` must be unique in the graph.
        """
        return tf.identity(tensor, name=name)

    def broadcast_hooks(self) -> list[tf.train.SessionRunHook]:
        """Hooks that broadcast the variables of rank 0 when a session starts."""
        return []

    def gather(self, value: Any) -> list[Any]:
        """Gathers one value from each rank, in the order of ranks, on every rank."""
        return [value]

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


class _SummedGradients(tf.train.Optimizer):
    """Passes precomputed gradients to the optimizer that wraps it.

    Accumulation happens earlier: an update communicates once, whatever the number of micro batches.
    """

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="SummedGradients")

    def compute_gradients(self, loss, var_list=None, **_):
        return list(zip(loss, var_list))


class _BroadcastVariables(tf.train.SessionRunHook):
    """Broadcasts the variables of rank 0 in each new session.

    Horovod's own hook is only available with tf.estimator.
    """

    def __init__(self, hvd: types.ModuleType) -> None:
        self._hvd = hvd

    def begin(self):
        # Model variables that are not global variables are frozen.
        variables = {id(v): v for v in (*tf.global_variables(), *tf.model_variables())}
        self._broadcast = self._hvd.broadcast_variables(list(variables.values()), 0)

    def after_create_session(self, session, coord):
        del coord
        session.run(self._broadcast)


class HorovodRanks(SingleProcess):
    """The ranks of a Horovod job (``mpirun`` or ``horovodrun``)."""

    def __init__(
        self,
        num_threads: int | None = None,
        communication: CommunicationSettings = _HOROVOD_DEFAULTS,
    ) -> None:
        """Initialises Horovod.

        Raises UserError if it is not installed, or the number of ranks does not suit
        ``communication``.
        """
        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise UserError(
                f"--horovod: Horovod cannot be imported ({error}); run 'make setup' without "
                "HOROVOD=0 to build it."
            ) from error
        os.environ.update({**MPI_ENVIRONMENT, **os.environ, **horovod_environment(communication)})
        end_with_launcher()
        hvd.init()
        self._hvd = hvd
        self._communication = communication
        self.rank = hvd.rank()
        self.local_rank = hvd.local_rank()
        self.world_size = hvd.size()
        self.local_size = hvd.local_size()
        check_all_met(os.environ, self.world_size)
        check_adasum(communication, self.world_size)
        super().__init__(num_threads)

    def sum_gradients(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[tf.Variable],
        *,
        complete_at_once: bool = False,
        most_rows: int | None = None,
    ) -> list[tf.Tensor]:
        """The gradients of the global batch; each is sent once, fused with others."""
        hvd, settings = self._hvd, self._communication
        compression = getattr(hvd.Compression, settings.compression)
        groups = number_of_groups(settings, complete_at_once=complete_at_once)
        gradients = [
            self._as_sent(gradient, variable, groups, most_rows)
            for gradient, variable in zip(gradients, variables)
        ]
        if settings.adasum:
            # Adasum of equal gradients is their mean, so it needs each rank's gradient, not its
            # share.
            reduced = [
                hvd.allreduce(gradient * self.world_size, op=hvd.Adasum, compression=compression)
                for gradient in gradients
            ]
        else:
            optimizer = hvd.DistributedOptimizer(
                _SummedGradients(), op=hvd.Sum, compression=compression, num_groups=groups
            )
            pairs = optimizer.compute_gradients(gradients, var_list=list(variables))
            reduced = as_tables([gradient for gradient, _ in pairs])
        for tensor, variable in zip(reduced, variables):
            tensor.set_shape(variable.shape)
        return reduced

    def sum_gradient_parts(
        self, gradients: Sequence[Gradient], *, complete_at_once: bool = False
    ) -> list[tf.Tensor]:
        """This rank's parts of the gradients of the global batch, by Horovod's reduce-scatter."""
        hvd, settings = self._hvd, self._communication
        how = {"op": hvd.Sum, "compression": getattr(hvd.Compression, settings.compression)}
        groups = number_of_groups(settings, complete_at_once=complete_at_once)
        flat = [tf.reshape(gradient, [-1]) for gradient in as_tables(gradients)]
        if groups:
            cuts = [part_of(len(flat), number, groups) for number in range(groups)]
            found = [
                part
                for cut in cuts
                if cut.size
                for part in hvd.grouped_reducescatter(flat[cut.start : cut.end], **how)
            ]
        else:
            found = [hvd.reducescatter(gradient, **how) for gradient in flat]
        for part, gradient in zip(found, flat):
            size = gradient.shape.num_elements()
            part.set_shape([part_of(size, self.rank, self.world_size).size])
        return found

    def _as_sent(
        self, gradient: Gradient, variable: tf.Variable, groups: int, most_rows: int | None
    ) -> Gradient:
        if isinstance(gradient, tf.IndexedSlices) and is_sent_as_rows(
            self._communication,
            variable.shape.as_list(),
            rows=gradient.values.shape[0] or most_rows,
            groups=groups,
            world_size=self.world_size,
        ):
            return gradient
        return tf.convert_to_tensor(gradient)

    def sum_over_ranks(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """``tensor`` summed over ranks; ``name`` must be unique in the graph."""
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)

    def from_chief(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The tensor of rank 0; ``name`` must be unique in the graph."""
        return self._hvd.broadcast(tensor, root_rank=0, name=name)

    def concatenate(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The vectors of all ranks, in the order of ranks; ``name`` must be unique in the graph."""
        if tensor.dtype != tf.bfloat16:
            return self._hvd.allgather(tensor, name=name)
        # Horovod's gather does not have the type.
        gathered = self._hvd.allgather(tf.bitcast(tensor, tf.uint16), name=name)
        return tf.bitcast(gathered, tf.bfloat16)

    def broadcast_hooks(self) -> list[tf.train.SessionRunHook]:
        """Hooks that broadcast the variables of rank 0 when a session starts."""
        return [_BroadcastVariables(self._hvd)]

    def gather(self, value: Any) -> list[Any]:
        """Gathers one value from each rank, in the order of ranks, on every rank."""
        config = tf.ConfigProto(
            # The first session of a process determines the threads of all later ones.
            intra_op_parallelism_threads=self.threads,
            # Otherwise it would take memory on all GPUs, and no later session could choose among
            # them.
            device_count={"GPU": 0},
        )
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            return self._hvd.allgather_object(value, session=session, name="gather")


def as_tables(gradients: Sequence[Gradient]) -> list[tf.Tensor]:
    """Dense gradients; the rows of a looked-up table are added at their indices."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def threads_per_rank(local_size: int) -> int:
    """A rank's share of its host's cores.

    Otherwise every rank would start as many threads as there are cores, and be slower than a single
    process (horovod issue 2804 measures a factor of three).
    """
    return max(1, available_cores() // local_size)


def connect(
    *,
    horovod: bool,
    num_threads: int | None = None,
    communication: CommunicationSettings = _HOROVOD_DEFAULTS,
) -> SingleProcess:
    """The ranks of this job, which exchange gradients according to ``communication``.

    A process that no launcher started is the only rank, also with ``horovod``. ``num_threads``
    overrides a rank's share of its host's cores. Raises UserError if a launcher started several
    independent processes: each would train a whole model and write it to the same directory.
    """
    if horovod and is_launched(os.environ):
        return HorovodRanks(num_threads, communication)
    check_alone(os.environ)
    return SingleProcess(num_threads)
