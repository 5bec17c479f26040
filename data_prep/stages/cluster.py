"""An executor that uses the workers of a Dask scheduler.

Dask distributed (https://distributed.dask.org) distributes the items, retries those of lost workers
and shows the progress on its dashboard. Items and results travel over the network as bytes, so
workers need nothing from this host's disk: neither the inputs nor a vocabulary. They need only the
same code, which is checked. Items go through the scheduler; results come directly from the workers
if these can be reached.

If a worker disappears, only its item is lost, and another worker gets it. An item that has cost
several workers (Dask's ``allowed-failures``, 3 unless configured) ends the work.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import pickle
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple

from bert_tf.durable.executor import Executor, Item, Result
from bert_tf.util.console import say
from bert_tf.util.errors import RepairableError, UserError, first_line
from data_prep.stages.version_record import version_record

try:
    import dask
    import distributed
except ImportError as error:
    raise UserError(
        f"--scheduler needs the package distributed, which cannot be imported ({error}); install "
        "it with pip install 'bert_tf[dask]'."
    ) from error

_ADDRESS = re.compile(r"((tcp|tls|wss?|ucx)://)?[^/\s]+:\d+")
_SECONDS_BETWEEN_COUNTS = 2.0
_SECONDS_TO_REACH = 5.0
# Items in progress per thread of a worker: one being processed, one waiting there, and one whose
# result is being fetched.
_ITEMS_PER_THREAD = 3

_of_thread = threading.local()  # in a worker: the work that it prepared last


class Patience(NamedTuple):
    """Seconds to wait.

    Attributes:
      at_first: for a scheduler that does not answer, and for the first worker.
      without_workers: for a worker, if all have disappeared halfway.
      for_a_result: at a time; enough to fetch some MB over a slow network.
    """

    at_first: float = 120.0
    without_workers: float = 600.0
    for_a_result: float = 20.0


_PATIENCE = Patience()


class _Work(NamedTuple):
    """What the workers do with every item.

    Attributes:
      number: unique number.
      make_worker: pickled function that creates the worker.
      versions: versions of code and libraries in that process.
    """

    number: str
    make_worker: bytes
    versions: Mapping[str, str]


class DaskWorkers(Executor):
    """The workers of a scheduler, which may come and go.

    They import the modules of ``make_worker``, items and results by name, so that none may be
    ``__main__``. Memory: three items per worker thread are in flight.

    Attributes:
      address: the scheduler's address, such as ``tcp://host:8786``.
      patience: how long to wait for the scheduler and its workers.
    """

    def __init__(self, address: str, patience: Patience = _PATIENCE) -> None:
        self.address = address
        self.patience = patience

    def check(self) -> None:
        """Raises UserError unless there is a scheduler with usable workers."""
        with _connected(self.address, self.patience) as client:
            _checked_workers(client, self.address, self.patience)

    def _results(
        self, make_worker: Callable[[], Callable[[Item], Result]], items: Iterable[Item], what: str
    ) -> Iterator[Result]:
        with _connected(self.address, self.patience) as client:
            workers = _checked_workers(client, self.address, self.patience)
            say(
                f"{what}: {len(workers)} workers at {self.address}, "
                f"dashboard {client.dashboard_link}",
                stream=sys.stderr,
            )
            hidden = unreachable(workers)
            if hidden:
                say(
                    f"{what}: {hidden} cannot be reached from here, so results come through the "
                    "scheduler, which is slower",
                    stream=sys.stderr,
                )
            client.direct_to_workers = hidden is None
            work = _Map(client, make_worker, self, what)
            yield from work.results(items)


class _Map:
    """The items of one call, some of which are in progress."""

    def __init__(
        self,
        client: distributed.Client,
        make_worker: Callable[[], Callable[[Any], Any]],
        executor: DaskWorkers,
        what: str,
    ):
        self._client = client
        self._scheduler = executor.address
        self._patience = executor.patience
        self._what = what
        self._number = uuid.uuid4().hex
        work = _Work(self._number, pickle.dumps(make_worker), version_record())
        # A task, not scattered data: it can be recomputed if the only worker that has it dies.
        with self._explained():
            self._work = client.submit(_same, work, key=f"{what}-work-{self._number}")
        self._threads, self._counted = 0, -float("inf")

    def results(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yields the results in order."""
        numbered = enumerate(items)
        pending: collections.deque[distributed.Future] = collections.deque()
        while True:
            room = self._most_pending() - len(pending)
            for number, item in itertools.islice(numbered, max(room, 0 if pending else 1)):
                pending.append(self._submit(number, item))
            if not pending:
                return
            yield self._result(pending.popleft())

    def _submit(self, number: int, item: Any) -> distributed.Future:
        key = f"{self._what}-{self._number}-{number}"
        content = pickle.dumps(item)
        with self._explained():
            return self._client.submit(_call, self._work, content, key=key, pure=False)

    def _most_pending(self) -> int:
        """How many items may be in progress, given the current workers."""
        now = time.monotonic()
        # Without a connection, the count would wait for one; a lost result raises an error at once.
        is_connected = self._client.status == "running"
        if now - self._counted >= _SECONDS_BETWEEN_COUNTS and is_connected:
            with self._explained():
                self._threads, self._counted = sum(self._client.nthreads().values()), now
        return _ITEMS_PER_THREAD * self._threads

    def _result(self, future: distributed.Future) -> Any:
        """Waits for a result as long as there is a worker, or may soon be one again."""
        since = None
        while True:
            # A result can be lost while it is being fetched, along with the only worker that had
            # it; then it would never arrive.
            try:
                return pickle.loads(future.result(timeout=self._patience.for_a_result))
            except distributed.TimeoutError:
                if future.status == "error":
                    raise
            except distributed.KilledWorker as error:
                raise RepairableError(
                    f"{self._what}: an item has killed {error.allowed_failures + 1} workers, "
                    f"the last one at {error.last_worker.address} (usually for lack of "
                    "memory); see the workers' logs, and give them more memory or fewer "
                    "threads."
                ) from error
            except Exception:
                if future.status == "error":
                    raise
                with self._explained():
                    raise
            since = self._waiting_since(since)

    def _waiting_since(self, since: float | None) -> float | None:
        """When all workers were found gone, None if there are some; ends an excessive wait."""
        if self._most_pending():
            return None
        if since is None:
            say(
                f"{self._what}: all workers are gone, waiting for others at {self._scheduler}",
                stream=sys.stderr,
            )
            return time.monotonic()
        if time.monotonic() - since > self._patience.without_workers:
            raise RepairableError(
                f"--scheduler={self._scheduler}: all workers are gone, and none has come for "
                f"{self._patience.without_workers:.0f} seconds; start workers and give the same "
                "command again."
            )
        return since

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts a lost connection to a UserError."""
        try:
            yield
        except distributed.TimeoutError:
            raise
        except (distributed.CancelledError, OSError) as error:
            raise RepairableError(
                f"{self._what}: the connection to the scheduler at {self._scheduler} was lost; "
                "start it and its workers again if they are gone, and give the same command again."
            ) from error


def _same(work: _Work) -> _Work:
    return work


def _call(work: _Work, item: bytes) -> bytes:
    """Runs in a worker's thread."""
    if getattr(_of_thread, "number", None) != work.number:
        difference = _difference(work.versions, version_record())
        if difference:
            raise RepairableError(_refusal(distributed.get_worker().address, difference))
        _of_thread.function = pickle.loads(work.make_worker)()
        _of_thread.number = work.number
    return pickle.dumps(_of_thread.function(pickle.loads(item)))


@contextlib.contextmanager
def _connected(address: str, patience: Patience) -> Iterator[distributed.Client]:
    """Yields a client of a scheduler; UserError if there is none at the address."""
    if not _ADDRESS.fullmatch(address):
        raise UserError(
            f"--scheduler={address} is not an address; give host and port, such as tcp://host:8786."
        )
    for name in ("asyncio", "distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # our own messages contain what matters
    # Items are blocks of text; Dask's warning is meant for data that is large by mistake.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    try:
        client = distributed.Client(
            address, timeout=patience.at_first, set_as_default=False, name="bert_tf"
        )
    except (OSError, ValueError, TypeError, ImportError, distributed.TimeoutError) as error:
        raise RepairableError(
            f"--scheduler={address}: no scheduler answers there within {patience.at_first:.0f} "
            f"seconds ({first_line(error)}); start one with 'dask scheduler', and give the address "
            "that it prints, such as tcp://host:8786."
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be gone, which has been reported
            client.close(timeout=5)


def _checked_workers(client: distributed.Client, address: str, patience: Patience) -> list[str]:
    """The addresses of the workers; UserError if there are none, or one is unusable."""
    if not client.nthreads():
        say(f"waiting for workers at {address}", stream=sys.stderr)
    try:
        client.wait_for_workers(1, timeout=patience.at_first)
    except distributed.TimeoutError as error:
        raise RepairableError(
            f"--scheduler={address}: the scheduler has no workers, and none has come within "
            f"{patience.at_first:.0f} seconds; start some with 'dask worker {address}'."
        ) from error
    try:
        client.run_on_scheduler(version_record)
    except Exception as error:
        raise UserError(_cannot_load(address, "the scheduler", error)) from error
    found = client.run(version_record, on_error="return")
    for worker, versions in found.items():
        if isinstance(versions, BaseException):
            raise UserError(_cannot_load(address, f"the worker {worker}", versions))
        difference = _difference(version_record(), versions)
        if difference:
            raise RepairableError(_refusal(worker, difference))
    return list(found)


def unreachable(workers: Iterable[str]) -> str | None:
    """The first worker, checking one per host, to which this host cannot connect."""
    of_hosts: dict[str, str] = {}
    for worker in workers:
        of_hosts.setdefault(worker.rpartition(":")[0], worker)
    for start, worker in of_hosts.items():
        place = (start.rpartition("://")[2].strip("[]"), int(worker.rpartition(":")[2]))
        try:
            socket.create_connection(place, timeout=_SECONDS_TO_REACH).close()
        except OSError:
            return worker
    return None


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Describes where a worker's versions differ; empty if they do not."""
    return ", ".join(
        f"{name} {theirs.get(name)}, not {version}"
        for name, version in ours.items()
        if theirs.get(name) != version
    )


def _cannot_load(address: str, who: str, error: BaseException) -> str:
    return (
        f"--scheduler={address}: {who} cannot load bert_tf ({first_line(error)}); install the same "
        "bert_tf there, or put it on PYTHONPATH there."
    )


def _refusal(worker: str, difference: str) -> str:
    return (
        f"--scheduler: the worker {worker} has {difference}, so its part of the output would be "
        "different; install the same versions there and start it again."
    )
