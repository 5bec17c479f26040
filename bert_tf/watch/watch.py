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
import os
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Callable, NoReturn

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import RunSettings
from bert_tf.ranks.failures import (
    ABSENT,
    CRASH,
    CUT_OFF,
    ENDED,
    GARBLED,
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
from bert_tf.watch.join import (
    CannotConnectError,
    Link,
    Message,
    UnreadableMessageError,
    connect_ranks,
)

_POLL_SECONDS = 0.25
_LONGEST_BEAT_SECONDS = 5.0
_BEATS_IN_TIMEOUT = 5

# How long rank 0 waits for other ranks' reports after a failure: for the same error from every
# rank, or for the reason why Horovod gave up.
_GRACE_SECONDS = {USER_ERROR: 1.5, CRASH: 1.5, CUT_OFF: 5.0}
# When rank 0 is lost, rank 1 reports it and ends the job before the others would.
_TURN_SECONDS, _LAST_TURN_SECONDS = 0.5, 5.0
_SECONDS_FOR_RANK_0_TO_REPORT = 10.0
_SECONDS_FOR_MPIRUN = 20.0

ASK, STOP, NOTED = "ask to stop", "stop", "stop noted"


class RankWatch:
    """Watches the other ranks from rank 0, and rank 0 from the others."""

    def __init__(
        self,
        ranks: Ranks,
        links: list[Link],
        *,
        timeout_seconds: float,
        how_to_resume: Callable[[], str],
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        """Prepares to watch ``links``, from :func:`connect_ranks`; call ``start`` to begin."""
        self.can_stop = True
        self._rank = ranks.rank
        self._world_size = ranks.world_size
        self._timeout = timeout_seconds
        self._how_to_resume = how_to_resume
        self._end_process = end_process
        self._others = {link.rank: link for link in links}
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._hosts = {link.rank: link.host for link in links}
        self._hosts[self._rank] = socket.gethostname()
        self._beat_seconds = min(_LONGEST_BEAT_SECONDS, timeout_seconds / _BEATS_IN_TIMEOUT)
        self._local_failure: Failure | None = None
        self._failures: dict[int, Failure] = {}
        self._report_at = float("inf")
        self._agreement = StopAgreement(self._others, decides=ranks.is_chief, tell=self._tell_all)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank_watch", daemon=True)

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch because this rank has finished, and informs the others."""
        self._stopping.set()
        self._thread.join()
        self._tell_all({"kind": "done"})
        for link in self._others.values():
            link.close()

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
        """See :class:`Watch`."""
        return self._agreement.stop_after(update, received)

    # The following methods run in the watch's thread.

    def _watch(self) -> None:
        try:
            self._watch_others()
        except Exception as error:
            # Without the watch, the ranks would wait for each other forever.
            write_last_words(traceback.format_exc())
            self._end_job({self._rank: failure_of(error)}, advice="start again")

    def _watch_others(self) -> None:
        with selectors.DefaultSelector() as selector:
            for link in self._others.values():
                selector.register(link, selectors.EVENT_READ, link)
            next_beat, before = 0.0, time.monotonic()
            while not self._stopping.is_set():
                ready = selector.select(_POLL_SECONDS)
                now = time.monotonic()
                if now - before > self._timeout / 2:
                    # This process itself was stopped and may not have read what others sent.
                    self._heard = dict.fromkeys(self._others, now)
                before = now
                for key, _ in ready:
                    self._read(key.data, now, selector)
                if now >= next_beat:
                    next_beat = now + self._beat_seconds
                    self._tell_all({"kind": "beat"})
                self._judge(now)

    def _read(self, link: Link, now: float, selector: selectors.BaseSelector) -> None:
        try:
            messages, failure = link.receive(), Failure(ENDED)
        except UnreadableMessageError as error:
            messages, failure = None, Failure(GARBLED, str(error))
        if messages is None:
            selector.unregister(link)
            if link.rank in self._others:
                self._note(link.rank, failure, now)
            return
        if messages:
            self._heard[link.rank] = now
        for message in messages:
            self._obey(link.rank, message, now)

    def _obey(self, rank: int, message: Message, now: float) -> None:
        kind = message["kind"]
        if kind == "beat":
            return
        if kind == "failure":
            self._note(rank, Failure(*message["failure"]), now)
        elif kind == "end":
            self._end_process(message["status"])
        elif kind == "done":
            del self._others[rank]
            self._agreement.leave(rank)
        else:
            self._agreement.handle(rank, message)

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
            self._tell_all({"kind": "failure", "failure": dataclasses.astuple(failure)})
            grace = _SECONDS_FOR_RANK_0_TO_REPORT if self._others else 0.0
        self._report_at = min(self._report_at, now + grace)

    def _report(self) -> None:
        if self._rank == 0 and {f.kind for f in self._failures.values()} == {CUT_OFF}:
            # Horovod has notified the waiting ranks: the cause is a rank that it did not notify.
            for rank in set(range(self._world_size)) - set(self._failures):
                self._failures[rank] = Failure(ABSENT)
        self._end_job(self._failures, advice=self._how_to_resume())

    def _end_job(self, failures: Mapping[int, Failure], *, advice: str) -> None:
        """Reports the failure once for all ranks, and ends their processes and this one."""
        end_if_launcher_is_gone()  # then other ranks have failed as well, but are not the cause
        sentence, status = describe_failures(
            failures, hosts=self._hosts, timeout_seconds=self._timeout, advice=advice
        )
        write_last_words(f"error: {sentence}\n")
        self._tell_all({"kind": "end", "status": status})
        silent = [rank for rank, f in failures.items() if f.kind == SILENT]
        if any(self._hosts[rank] != self._hosts[self._rank] for rank in silent):
            with contextlib.suppress(OSError):  # if no process can be started, leave mpirun alone
                kill_launcher_if_it_hangs(_SECONDS_FOR_MPIRUN)
        self._end_process(status)

    def _tell_all(self, message: Message) -> None:
        for link in list(self._others.values()):
            link.send(message)


@contextlib.contextmanager
def watched(
    ranks: Ranks,
    settings: RunSettings,
    *,
    timeout_seconds: float,
) -> Iterator[Watch]:
    """Watches the ranks while the body runs; an exception in it ends the whole job.

    Collective. ``timeout_seconds`` is rank 0's --rank_timeout; 0 disables the watch.
    Raises UserError if ranks cannot connect.
    """
    timeout_seconds = ranks.broadcast(timeout_seconds)
    if ranks.world_size == 1 or not timeout_seconds:
        yield NoWatch(ranks)
        return
    try:
        links = connect_ranks(ranks)
    except CannotConnectError as error:
        raise UserError(
            f"{error}; allow connections between the hosts, or give --rank_timeout=0 to run "
            "without the watch over the ranks."
        ) from error
    watch = RankWatch(
        ranks,
        links,
        timeout_seconds=timeout_seconds,
        how_to_resume=lambda: how_to_resume(settings, look=ranks.is_chief),
    )
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


class StopAgreement:
    """One rank's view of when to stop.

    Rank 0 chooses the update after the one it has just finished, and starts it only once every rank
    has been told. No rank can finish it before rank 0 has started it, so all stop after it.
    """

    def __init__(self, others: Iterable[int], *, decides: bool, tell: Callable[[Message], None]):
        """``others`` are the ranks to which ``tell`` sends; ``decides`` is true on rank 0."""
        self._decides = decides
        self._tell = tell
        self._condition = threading.Condition()
        self._uninformed = set(others)
        self._requested: int | None = None
        self._stop: tuple[int, int] | None = None  # update after which to stop, and signal

    def stop_after(self, update: int, received: int | None) -> int | None:
        """Like ``Watch.stop_after``; on rank 0 it may wait for the other ranks."""
        with self._condition:
            if self._stop is not None:
                last, number = self._stop
                return number if update >= last else None
            requested = received or self._requested
            if requested and self._decides:
                self._stop = (update + 1, requested)
                self._tell({"kind": STOP, "after": update + 1, "signal": requested})
                self._condition.wait_for(lambda: not self._uninformed)
            elif requested:
                self._tell({"kind": ASK, "signal": requested})
        return None

    def handle(self, rank: int, message: Message) -> None:
        """Handles a message of the three kinds from another rank; called in another thread."""
        with self._condition:
            if message["kind"] == ASK:
                self._requested = message["signal"]
            elif message["kind"] == STOP:
                self._stop = (message["after"], message["signal"])
                self._tell({"kind": NOTED})
            else:
                self._uninformed.discard(rank)
                self._condition.notify_all()

    def leave(self, rank: int) -> None:
        """Notes that a rank has finished and need not be informed any more."""
        with self._condition:
            self._uninformed.discard(rank)
            self._condition.notify_all()
