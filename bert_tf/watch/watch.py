"""Ends the whole job with one sentence when a rank fails, and stops it on request.

A lost rank leaves the others inside a collective operation, which nothing can interrupt. So each
rank has a thread that reports to rank 0 every few seconds that its process is alive, and expects
the same from rank 0. A side that no longer hears from the other reports this
and ends its process immediately.

What is detected, and when:

* a process that ended: at once;
* an error in one rank, whether a user's mistake or a bug: at once, reported by the rank itself;
* a stopped process, a host that is down, a broken network link: after the time limit.

A rank that is alive and keeps the others waiting is found by Horovod's own check, with a longer
limit. Horovod then gives up on all ranks that wait, and rank 0 names the one that does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import RunSettings
from bert_tf.ranks.failures import (
    ABSENT,
    CRASH,
    CUT_OFF,
    ENDED,
    SILENT,
    USER_ERROR,
    Failure,
    describe_failures,
    failure_of,
    write_last_words,
)
from bert_tf.ranks.launcher import end_if_launcher_is_gone, kill_launcher_if_it_hangs
from bert_tf.ranks.ranks import Ranks
from bert_tf.util.errors import UserError
from bert_tf.watch.interface import NoWatch, Watch
from bert_tf.watch.join import CannotConnectError, Peers, connect_ranks

_POLL_SECONDS = 0.25
_LONGEST_BEAT_SECONDS = 5.0
_BEATS_IN_TIMEOUT = 5
_MILLISECONDS_TO_SEND = 1000

# How long rank 0 waits for other ranks' reports after a failure: for the same error from every
# rank, or for the reason why Horovod gave up.
_GRACE_SECONDS = {USER_ERROR: 1.5, CRASH: 1.5, CUT_OFF: 5.0}
# When rank 0 is lost, rank 1 reports it and ends the job before the others would.
_TURN_SECONDS, _LAST_TURN_SECONDS = 0.5, 5.0
_SECONDS_FOR_RANK_0_TO_REPORT = 10.0
_SECONDS_FOR_MPIRUN = 20.0


class RankWatch:
    """Watches the other ranks from rank 0, and rank 0 from the others.

    Messages between ranks are JSON objects, named by their ``kind``.
    """

    can_stop = True

    def __init__(
        self, ranks: Ranks, peers: Peers, settings: RunSettings, *, timeout_seconds: float
    ) -> None:
        """Prepares to watch ``peers``, from :func:`connect_ranks`; call ``start`` to begin."""
        self._rank = ranks.rank
        self._world_size = ranks.world_size
        self._settings = settings
        self._timeout = timeout_seconds
        self._others = dict(peers.connections)
        self._hosts = peers.hosts
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._beat_seconds = min(_LONGEST_BEAT_SECONDS, timeout_seconds / _BEATS_IN_TIMEOUT)
        self._local_failure: Failure | None = None
        self._failures: dict[int, Failure] = {}
        self._report_at = float("inf")
        self._sending = threading.Lock()
        # When to stop: what is asked for, decided on rank 0, and who has not been told yet.
        self._changed = threading.Condition()
        self._requested: int | None = None
        self._stop: tuple[int, int] | None = None  # update after which to stop, and signal
        self._untold = set(self._others)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank_watch", daemon=True)

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch because this rank has finished, and informs the others."""
        self._stopping.set()
        self._thread.join()
        self._tell_all("done")
        for connection in self._others.values():
            connection.close()

    def fail(self, error: Exception) -> NoReturn:
        """Ends the job because of an error in this rank; does not return."""
        failure = failure_of(error)
        with contextlib.suppress(OSError, ValueError):  # its reader may be gone or be the error
            print(end="", flush=True)
        if failure.kind == CRASH:
            trace = traceback.format_exception(type(error), error, error.__traceback__)
            write_last_words("".join(trace))
        self._local_failure = failure
        while True:  # the thread reports it and ends the process
            time.sleep(_LAST_TURN_SECONDS)

    def stop_after(self, update: int, received: int | None) -> int | None:
        """See :class:`Watch`; on rank 0 it may wait for the other ranks.

        Rank 0 chooses the update after the one it has just finished, and starts it only once every
        rank has been told. No rank can finish it before rank 0 has started it, so all stop after
        it.
        """
        with self._changed:
            if self._stop is not None:
                last, number = self._stop
                return number if update >= last else None
            requested = received or self._requested
            if requested and self._rank == 0:
                self._stop = (update + 1, requested)
                self._tell_all("stop", after=update + 1, signal=requested)
                self._changed.wait_for(lambda: not self._untold)
            elif requested:
                self._tell_all("ask to stop", signal=requested)
        return None

    # The following methods run in the watch's thread.

    def _watch(self) -> None:
        try:
            self._watch_others()
        except Exception as error:
            # Without the watch, the ranks would wait for each other forever.
            write_last_words(traceback.format_exc())
            self._end_job({self._rank: failure_of(error)}, advice="start again")

    def _watch_others(self) -> None:
        listened_to = dict(self._others)
        next_beat, before = 0.0, time.monotonic()
        while not self._stopping.is_set():
            ready = wait(listened_to.values(), _POLL_SECONDS)
            now = time.monotonic()
            if now - before > self._timeout / 2:
                # This process itself was stopped and may not have read what others sent.
                self._heard = dict.fromkeys(self._others, now)
            before = now
            for rank, connection in list(listened_to.items()):
                if connection in ready and not self._read(rank, connection, now):
                    del listened_to[rank]
            if now >= next_beat:
                next_beat = now + self._beat_seconds
                self._tell_all("beat")
            self._judge(now)

    def _read(self, rank: int, connection: Connection, now: float) -> bool:
        """Reads and obeys a message; returns False at the end of the connection."""
        try:
            message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            if rank in self._others:
                self._note(rank, Failure(ENDED), now)
            return False
        self._heard[rank] = now
        self._obey(rank, message, now)
        return True

    def _obey(self, rank: int, message: Mapping[str, Any], now: float) -> None:
        kind = message["kind"]
        if kind == "failure":
            self._note(rank, Failure(*message["failure"]), now)
        elif kind == "end":
            self._end_process(message["status"])
        elif kind == "stop":
            with self._changed:
                self._stop = (message["after"], message["signal"])
            self._tell_all("stop noted")
        elif kind == "ask to stop":
            with self._changed:
                self._requested = message["signal"]
        elif kind in ("stop noted", "done"):
            with self._changed:
                self._untold.discard(rank)
                self._changed.notify_all()
            if kind == "done":
                del self._others[rank]

    def _judge(self, now: float) -> None:
        if self._local_failure is not None and self._rank not in self._failures:
            self._note(self._rank, self._local_failure, now)
        for rank in self._others:
            if now - self._heard[rank] > self._timeout:
                self._note(rank, Failure(SILENT), now)
        if now >= self._report_at:
            self._report()

    def _note(self, rank: int, failure: Failure, now: float) -> None:
        """Records a rank's first failure; reports it once others had time to report theirs."""
        if rank in self._failures:
            return
        self._failures[rank] = failure
        if self._rank == 0:
            everyone = len(self._failures) == self._world_size
            grace = 0.0 if everyone else _GRACE_SECONDS.get(failure.kind, 0.0)
        elif rank == 0:
            grace = min(_TURN_SECONDS * (self._rank - 1), _LAST_TURN_SECONDS)
        else:
            self._tell_all("failure", failure=dataclasses.astuple(failure))
            grace = _SECONDS_FOR_RANK_0_TO_REPORT if self._others else 0.0
        self._report_at = min(self._report_at, now + grace)

    def _report(self) -> None:
        if self._rank == 0 and {f.kind for f in self._failures.values()} == {CUT_OFF}:
            # Horovod has notified the waiting ranks: the cause is a rank that it did not notify.
            for rank in set(range(self._world_size)) - set(self._failures):
                self._failures[rank] = Failure(ABSENT)
        self._end_job(self._failures, advice=how_to_resume(self._settings, look=self._rank == 0))

    def _end_job(self, failures: Mapping[int, Failure], *, advice: str) -> None:
        """Reports the failure once for all ranks, and ends their processes and this one."""
        end_if_launcher_is_gone()  # then other ranks have failed as well, but are not the cause
        sentence, status = describe_failures(
            failures, hosts=self._hosts, timeout_seconds=self._timeout, advice=advice
        )
        write_last_words(f"error: {sentence}\n")
        self._tell_all("end", status=status)
        silent = [rank for rank, f in failures.items() if f.kind == SILENT]
        if any(self._hosts[rank] != self._hosts[self._rank] for rank in silent):
            with contextlib.suppress(OSError):  # if no process can be started, leave mpirun alone
                kill_launcher_if_it_hangs(_SECONDS_FOR_MPIRUN)
        self._end_process(status)

    def _end_process(self, status: int) -> None:
        os._exit(status)

    def _tell_all(self, kind: str, **content: Any) -> None:
        """Sends a message where it is read; only an answer shows whether the other end lives."""
        message = json.dumps({"kind": kind, **content}).encode()
        with self._sending:
            for connection in list(self._others.values()):
                with contextlib.suppress(OSError):
                    room = select.poll()
                    room.register(connection, select.POLLOUT)
                    # Messages are short, so what there is room for is sent whole.
                    if room.poll(_MILLISECONDS_TO_SEND):
                        connection.send_bytes(message)


@contextlib.contextmanager
def watched(ranks: Ranks, settings: RunSettings, *, timeout_seconds: float) -> Iterator[Watch]:
    """Watches the ranks while the body runs; an exception in it ends the whole job.

    Collective. ``timeout_seconds`` is rank 0's --rank_timeout; 0 disables the watch.
    Raises UserError if ranks cannot connect.
    """
    timeout_seconds = ranks.broadcast(timeout_seconds)
    if ranks.world_size == 1 or not timeout_seconds:
        yield NoWatch(ranks)
        return
    try:
        peers = connect_ranks(ranks)
    except CannotConnectError as error:
        raise UserError(
            f"{error}; allow connections between the hosts, or give --rank_timeout=0 to run "
            "without the watch over the ranks."
        ) from error
    watch = RankWatch(ranks, peers, settings, timeout_seconds=timeout_seconds)
    watch.start()
    try:
        yield watch
    except Exception as error:
        watch.fail(error)
    finally:
        watch.stop()


def how_to_resume(settings: RunSettings, *, look: bool, seconds_to_read: float = 2.0) -> str:
    """Advice after a failure; ``look`` for the latest checkpoint on rank 0, which wrote it."""
    if not settings.do_train:  # evaluations save no checkpoints
        return "start again"
    output_dir = settings.output_dir
    found: list[str | None] = []

    def read() -> None:
        with contextlib.suppress(Exception):
            found.append(tf.train.latest_checkpoint(str(output_dir)))

    if look:
        # In a thread, since the disk itself may hang.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(seconds_to_read)
    if not found:
        return f"start again to resume from the latest checkpoint in {output_dir}, if one was saved"
    if found[0] is not None:
        return f"start again to resume from {found[0]}, which is intact"
    origin = f" from {settings.start.init_checkpoint}" if settings.start.init_checkpoint else ""
    return f"start again{origin} (no checkpoint was saved in {output_dir} yet)"
