"""Executors process many items in parallel and return results in the order of the items.

:class:`Processes` uses processes of this machine;
:class:`data_prep.stages.cluster.DaskWorkers` uses the workers of a Dask scheduler. To add an
executor, write a class that yields results, and a line in
``data_prep.stages.settings.WorkerSettings``.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, TypeVar

from bert_tf.util.environment import available_cores
from bert_tf.util.errors import RepairableError, UserError, explain_os_error
from bert_tf.util.shared_memory import Packed, Slot, Slots, pack

Item = TypeVar("Item")
Result = TypeVar("Result")

_worker: Callable[[Any], Any]  # one per worker process, set when it starts


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of ``size`` consecutive items; the last one may be shorter."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


class Executor(abc.ABC):
    """Applies a function to many items, somewhere."""

    def map(
        self,
        make_worker: Callable[[], Callable[[Item], Result]],
        items: Iterable[Item],
        *,
        what: str,
    ) -> Generator[Result, None, None]:
        """Yields ``make_worker()(item)`` for every item, in the order of the items.

        Args:
          make_worker: called once in each working process or thread; it, the items and the results
            must be picklable.
          items: consumed on demand, so it may be a generator over a file of any size.
          what: name of the work in messages.

        Raises:
          UserError: a worker raised or died. A worker's UserError is passed on unchanged.
        """
        results = self._results(make_worker, items, what)
        while True:
            try:
                result = next(results)
            except StopIteration:
                return
            except UserError:
                raise
            except BrokenProcessPool as error:
                raise RepairableError(
                    f"{what}: a worker process died (usually for lack of memory); try a "
                    "smaller --num_workers."
                ) from error
            except Exception as error:
                kind = RepairableError if isinstance(error, (MemoryError, OSError)) else UserError
                explained = explain_os_error(error) if isinstance(error, OSError) else None
                reason = explained or f"failed with {type(error).__name__}: {error}"
                raise kind(f"{what}: {reason}") from error
            yield result

    @abc.abstractmethod
    def check(self) -> None:
        """Raises UserError if there are no workers; called before hours of work without them."""

    @abc.abstractmethod
    def _results(
        self, make_worker: Callable[[], Callable[[Item], Result]], items: Iterable[Item], what: str
    ) -> Iterator[Result]:
        """Yields the results in order; a worker's error is raised at its item's turn."""


class Processes(Executor):
    """Processes of this machine, which this one reads items for and takes results from.

    More than one requires an importable ``__main__`` (they are spawned, since forking a process
    with threads can hang); a single one is the current process.

    Memory: at most ``2 * num_workers + 2`` items are in flight, whatever their total number.

    Attributes:
      num_workers: number of processes.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    @classmethod
    def of(cls, num_workers: int, at_most: int | None = None) -> Processes:
        """Creates as many as a flag requests, or for 0 one per available core; at least 1.

        Raises UserError for a negative number.
        """
        if num_workers < 0:
            raise UserError(
                f"--num_workers={num_workers}: give a positive number, or 0 for all cores."
            )
        chosen = num_workers or available_cores()
        return cls(chosen if at_most is None else max(1, min(chosen, at_most)))

    def check(self) -> None:
        """The current process is always available."""

    def _results(
        self,
        make_worker: Callable[[], Callable[[Item], Result]],
        items: Iterable[Item],
        what: str,  # noqa: ARG002
    ) -> Iterator[Result]:
        if self.num_workers == 1:
            yield from map(make_worker(), items)
            return
        pool = concurrent.futures.ProcessPoolExecutor(
            self.num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(make_worker,),
        )
        submitted: collections.deque[tuple[concurrent.futures.Future, Slot]] = collections.deque()
        with Slots() as slots:
            try:
                for item in items:
                    slot = slots.take()
                    submitted.append((pool.submit(_call_worker, item, slot.address), slot))
                    if len(submitted) > 2 * self.num_workers:  # two each, so that none is idle
                        yield _received(slots, *submitted.popleft())
                while submitted:
                    yield _received(slots, *submitted.popleft())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _received(slots: Slots, future: concurrent.futures.Future, slot: Slot) -> Any:
    return slots.unpack(future.result(), slot)


def _start_worker(make_worker: Callable[[], Callable[[Any], Any]]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker = make_worker()


def _exit_with_parent() -> None:
    """Ends this process after its parent's end, since a killed parent cannot end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call_worker(item: Any, address: str | None) -> Packed:
    return pack(_worker(item), address)
