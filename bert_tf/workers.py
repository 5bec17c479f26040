"""Work on many items, whose results arrive in the order of the items: here, or on other machines.

The executors are a pool of processes of this machine, and the workers of a Dask scheduler
(cluster.py, which is loaded only if it is asked for).

Memory: at most ``2 * num_workers + 1`` items are in flight, whatever their total number; with a
scheduler, three for each thread of its workers.
"""

from __future__ import annotations

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

from bert_tf.environment import available_cores
from bert_tf.errors import RepairableError, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

_worker: Callable[[Any], Any] | None = None  # one per worker process, set when it starts


def resolve_num_workers(num_workers: int, scheduler: str | None = None) -> int:
    """The number of processes to use; 0 means all cores that this process may run on.

    Raises UserError for a negative number, and for any that is given with a scheduler.
    """
    if num_workers < 0:
        raise UserError(f"--num_workers={num_workers}: give a positive number, or 0 for all cores.")
    if num_workers and scheduler:
        raise UserError(
            f"--num_workers={num_workers} and --scheduler contradict each other: the scheduler's "
            "workers do the work; leave out one of them."
        )
    return num_workers or available_cores()


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of ``size`` items, in order; the last one may be shorter."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


def ordered_map(
    make_worker: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    *,
    num_workers: int,
    what: str,
    scheduler: str | None = None,
) -> Generator[Result, None, None]:
    """Yields ``make_worker()(item)`` for every item, in the order of the items.

    Args:
      make_worker: called once in each process; it, the items and the results must be picklable.
      items: consumed on demand, so it may be a generator over a file of any size.
      num_workers: number of processes; 1 works in this process. More need an importable
        ``__main__`` (processes are spawned, because forking a process with threads can hang).
      what: names the work in error messages.
      scheduler: address of a Dask scheduler, whose workers are used instead of processes here. They
        import the modules of ``make_worker``, items and results by name.

    Raises:
      UserError: a worker raised or died. A worker's UserError is passed on unchanged.
    """
    if scheduler:
        from bert_tf.cluster import cluster_map  # Dask is needed for this only

        results = cluster_map(make_worker, items, scheduler=scheduler, what=what)
    elif num_workers == 1:
        results = map(make_worker(), items)
    else:
        results = _pool_map(make_worker, items, num_workers)
    while True:
        try:
            result = next(results)
        except StopIteration:
            return
        except UserError:
            raise
        except BrokenProcessPool as error:
            raise RepairableError(
                f"{what}: a worker process died (most often from lack of memory); try a smaller "
                "--num_workers."
            ) from error
        except Exception as error:
            kind = RepairableError if isinstance(error, (MemoryError, OSError)) else UserError
            raise kind(f"{what}: failed with {type(error).__name__}: {error}") from error
        yield result


def _pool_map(
    make_worker: Callable[[], Callable[[Item], Result]], items: Iterable[Item], num_workers: int
) -> Iterator[Result]:
    executor = concurrent.futures.ProcessPoolExecutor(
        num_workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(make_worker,),
    )
    items = iter(items)
    pending: collections.deque = collections.deque()
    try:
        for item in itertools.islice(items, 2 * num_workers):
            pending.append(executor.submit(_call_worker, item))
        while pending:
            result = pending.popleft().result()
            for item in itertools.islice(items, 1):
                pending.append(executor.submit(_call_worker, item))
            yield result
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker(make_worker: Callable[[], Callable[[Any], Any]]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker = make_worker()


def _exit_with_parent() -> None:
    """Ends this process when its parent is gone, since a killed parent cannot stop it."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _call_worker(item: Any) -> Any:
    return _worker(item)
