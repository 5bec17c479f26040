"""The ranks of a Horovod job: the only module that imports Horovod."""

from __future__ import annotations

import os
import types
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import CommunicationSettings
from bert_tf.ranks.communication import (
    MPI_ENVIRONMENT,
    check_adasum,
    horovod_environment,
    is_sent_as_rows,
    number_of_groups,
)
from bert_tf.ranks.launched import check_all_met
from bert_tf.ranks.launcher import end_with_launcher
from bert_tf.ranks.ranks import Gradient, Ranks, as_tables, part_of
from bert_tf.util.errors import UserError


class _SummedGradients(tf.train.Optimizer):
    """Passes precomputed gradients to the optimizer that wraps it.

    Accumulation happens earlier: an update communicates once, whatever its number of micro batches.
    """

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="SummedGradients")

    def compute_gradients(self, loss: Any, var_list: Any = None, **_: Any) -> list[Any]:
        return list(zip(loss, var_list))


class _BroadcastVariables(tf.train.SessionRunHook):
    """Broadcasts rank 0's variables in each new session.

    Horovod's own hook requires tf.estimator.
    """

    def __init__(self, hvd: types.ModuleType) -> None:
        self._hvd = hvd

    def begin(self) -> None:
        # Model variables that are not global variables are frozen.
        variables = {id(v): v for v in (*tf.global_variables(), *tf.model_variables())}
        self._broadcast = self._hvd.broadcast_variables(list(variables.values()), 0)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        del coord
        session.run(self._broadcast)


class HorovodRanks(Ranks):
    """The ranks of a Horovod job (``mpirun`` or ``horovodrun``)."""

    def __init__(
        self,
        num_threads: int | None,
        communication: CommunicationSettings,
    ) -> None:
        """Initialises Horovod.

        Raises UserError if it is not installed or the number of ranks does not suit
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
            # Adasum of equal gradients is their mean, so it needs each rank's own gradient rather
            # than a fraction of it.
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
        """This rank's parts of the global batch's gradients, using Horovod's reduce-scatter."""
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
        """The sum of ``tensor`` over ranks; ``name`` must be unique in the graph."""
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)

    def from_chief(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Rank 0's tensor; ``name`` must be unique in the graph."""
        return self._hvd.broadcast(tensor, root_rank=0, name=name)

    def concatenate(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The vectors of all ranks, in order of rank; ``name`` must be unique in the graph."""
        if tensor.dtype != tf.bfloat16:
            return self._hvd.allgather(tensor, name=name)
        # Horovod's gather does not support bfloat16.
        gathered = self._hvd.allgather(tf.bitcast(tensor, tf.uint16), name=name)
        return tf.bitcast(gathered, tf.bfloat16)

    def broadcast_hooks(self) -> list[tf.train.SessionRunHook]:
        """Hooks that broadcast rank 0's variables when a session starts."""
        return [_BroadcastVariables(self._hvd)]

    def gather(self, value: Any) -> list[Any]:
        """Gathers one value from each rank, in order of rank, on every rank."""
        config = tf.ConfigProto(
            # The first session of a process determines the threads of all later ones.
            intra_op_parallelism_threads=self.threads,
            # Otherwise it would take memory on all GPUs, and no later session could choose
            # between them.
            device_count={"GPU": 0},
        )
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            return self._hvd.allgather_object(value, session=session, name="gather")
