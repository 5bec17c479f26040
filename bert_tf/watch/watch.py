"""Ends the whole job with one sentence when one of its ranks fails, and stops it when asked to.

A rank that is lost leaves the others inside a collective operation, which nothing can interrupt. So
each rank has a thread that tells rank 0 every few seconds that its process is there and moves, and
listens for the same from rank 0. Whoever misses the other says so, and ends the process as it is.

What is noticed, and when:

* a process that ended: at once;
* an error of one rank, a user's mistake or another: at once, as the rank says it itself;
* a process that was stopped, a host that is down, a link that is cut: after the time limit;
* a rank that hangs while others wait for it: after the time limit where it hangs in Python or
  reads records. Horovod's own check, with a longer limit, is there for the rest.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable, NoReturn

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import RunSettings
from bert_tf.errors import UserError
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.ranks.failures import (
    ABSENT,
    CRASH,
    CUT_OFF,
    ENDED,
    GARBLED,
    SILENT,
    STUCK,
    USER_ERROR,
    Failure,
    describe_failures,
    failure_of,
    write_last_words,
)
from bert_tf.ranks.launched import end_if_launcher_is_gone, kill_launcher_if_it_hangs
from bert_tf.watch.activity import Activity
from bert_tf.watch.join import CannotConnectError, connect_ranks
from bert_tf.watch.rank_links import Link, Message, UnreadableMessageError
from bert_tf.watch.stop_agreement import StopAgreement

_POLL_SECONDS = 0.25
_LONGEST_BEAT_SECONDS = 5.0
_BEATS_IN_TIMEOUT = 5

# How long rank 0 waits for other ranks' word after a failure, before it speaks: for the same error
# from every rank, or for the cause of what Horovod gave up on.
_GRACE_SECONDS = {USER_ERROR: 1.5, CRASH: 1.5, CUT_OFF: 5.0}
# When rank 0 is lost, rank 1 speaks, and ends the job before the others would.
_TURN_SECONDS, _LAST_TURN_SECONDS = 0.5, 5.0
_SECONDS_FOR_RANK_0_TO_SPEAK = 10.0
_SECONDS_TO_READ = 2.0
_SECONDS_FOR_MPIRUN = 20.0


class NoWatch:
    """For a single process, and where --rank_timeout=0 turned the watch off.

    Attributes:
      can_stop: whether all ranks can stop after the same update.
    """

    def __init__(self, ranks: SingleProcess) -> None:
        """A single rank needs to agree with nobody."""
        self.can_stop = ranks.world_size == 1

    def stop_after(self, update: int, received: int | None) -> int | None:
        """Whether to stop after the ``update``-th update of this run, on every rank alike.

        Every rank calls it after each update. ``received`` is the number of a signal that asked
        this rank to stop, None without one. Returns the signal to stop for, or None.
        """
        del update
        return received


@dataclasses.dataclass
class _Other:
    """What is known of the other end of a link."""

    link: Link
    heard: float
    stuck_seconds: float = 0.0
    where: str = ""


class RankWatch(NoWatch):
    """Watches the other ranks from rank 0, and rank 0 from the others."""

    def __init__(
        self,
        ranks: SingleProcess,
        links: list[Link],
        *,
        timeout_seconds: float,
        records_read: Callable[[], int],
        how_to_go_on: Callable[[], str],
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        """Watches over ``links``, from :func:`connect_ranks`; ``start`` begins.

        ``records_read`` is a count by which a rank that reads slowly is told from one that hangs.
        """
        super().__init__(ranks)
        self.can_stop = True
        self._rank = ranks.rank
        self._world_size = ranks.world_size
        self._timeout = timeout_seconds
        self._how_to_go_on = how_to_go_on
        self._end_process = end_process
        now = time.monotonic()
        self._others = {link.rank: _Other(link, now) for link in links}
        self._hosts = {link.rank: link.host for link in links}
        self._hosts[self._rank] = socket.gethostname()
        self._beat_seconds = min(_LONGEST_BEAT_SECONDS, timeout_seconds / _BEATS_IN_TIMEOUT)
        self._activity = Activity(records_read)
        self._stuck = (0.0, "")
        self._own_failure: Failure | None = None
        self._failures: dict[int, Failure] = {}
        self._speak_at = float("inf")
        self._agreement = StopAgreement(self._others, decides=ranks.is_chief, tell=self._tell_all)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank_watch", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch because this rank is done, and says so to the others."""
        self._stopping.set()
        self._thread.join()
        self._tell_all({"kind": "done"})
        for other in self._others.values():
            other.link.close()

    def fail(self, error: Exception) -> NoReturn:
        """Ends the job because of an error of this rank; does not return."""
        failure = failure_of(error)
        with contextlib.suppress(OSError, ValueError):  # what reads it may be gone, or be the error
            print(end="", flush=True)
        if failure.kind == CRASH:
            trace = traceback.format_exception(type(error), error, error.__traceback__)
            write_last_words("".join(trace))
        self._own_failure = failure
        while True:  # the thread says it, and ends the process
            time.sleep(_LAST_TURN_SECONDS)

    def stop_after(self, update: int, received: int | None) -> int | None:
        """As in :class:`NoWatch`."""
        return self._agreement.stop_after(update, received)

    # What follows runs in the thread.

    def _watch(self) -> None:
        try:
            self._watch_others()
        except Exception as error:
            # Unwatched, the ranks would wait for each other for ever.
            write_last_words(traceback.format_exc())
            self._end_job({self._rank: failure_of(error)}, go_on="start again")

    def _watch_others(self) -> None:
        with selectors.DefaultSelector() as selector:
            for other in self._others.values():
                selector.register(other.link, selectors.EVENT_READ, other)
            next_beat, before = 0.0, time.monotonic()
            while not self._stopping.is_set():
                ready = selector.select(_POLL_SECONDS)
                now = time.monotonic()
                if now - before > self._timeout / 2:
                    # This process was stopped itself, and may not have read what others sent.
                    for other in self._others.values():
                        other.heard = now
                before = now
                for key, _ in ready:
                    self._read(key.data, now, selector)
                if now >= next_beat:
                    next_beat = now + self._beat_seconds
                    self._beat()
                self._judge(now)

    def _beat(self) -> None:
        self._stuck = self._activity.look()
        seconds, where = self._stuck
        self._tell_all({"kind": "beat", "stuck": seconds, "where": where})

    def _read(self, other: _Other, now: float, selector: selectors.BaseSelector) -> None:
        try:
            messages, failure = other.link.receive(), Failure(ENDED)
        except UnreadableMessageError as error:
            messages, failure = None, Failure(GARBLED, str(error))
        if messages is None:
            selector.unregister(other.link)
            if other.link.rank in self._others:
                self._note(other.link.rank, failure, now)
            return
        if messages:
            other.heard = now
        for message in messages:
            self._obey(other, message, now)

    def _obey(self, other: _Other, message: Message, now: float) -> None:
        kind = message["kind"]
        if kind == "beat":
            other.stuck_seconds, other.where = message["stuck"], message["where"]
        elif kind == "failure":
            self._note(other.link.rank, Failure(*message["failure"]), now)
        elif kind == "end":
            self._end_process(message["status"])
        elif kind == "done":
            del self._others[other.link.rank]
            self._agreement.leave(other.link.rank)
        else:
            self._agreement.hear(other.link.rank, message)

    def _judge(self, now: float) -> None:
        if self._own_failure is not None and self._rank not in self._failures:
            self._note(self._rank, self._own_failure, now)
        for rank, other in list(self._others.items()):
            if now - other.heard > self._timeout:
                self._note(rank, Failure(SILENT), now)
            elif self._rank == 0 and other.stuck_seconds > self._timeout:
                self._note(rank, Failure(STUCK, other.where), now)
        seconds, where = self._stuck
        if self._rank == 0 and seconds > self._timeout and self._own_failure is None:
            self._note(self._rank, Failure(STUCK, where), now)
        if now >= self._speak_at:
            self._speak()

    def _note(self, rank: int, failure: Failure, now: float) -> None:
        """Notes a rank's first failure; the sentence is due when others had time to say theirs."""
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
            grace = _SECONDS_FOR_RANK_0_TO_SPEAK if self._others else 0.0
        self._speak_at = min(self._speak_at, now + grace)

    def _speak(self) -> None:
        if self._rank == 0 and {f.kind for f in self._failures.values()} == {CUT_OFF}:
            # Ranks that were waiting have been told by Horovod: the cause is one that has not.
            for rank in set(range(self._world_size)) - set(self._failures):
                self._failures[rank] = Failure(ABSENT)
        self._end_job(self._failures, go_on=self._how_to_go_on())

    def _end_job(self, failures: Mapping[int, Failure], *, go_on: str) -> None:
        """Says what has failed, once for all ranks, and ends their processes and this one."""
        end_if_launcher_is_gone()  # so are other ranks then, but not by themselves
        sentence, status = describe_failures(
            failures, hosts=self._hosts, timeout_seconds=self._timeout, go_on=go_on
        )
        write_last_words(f"error: {sentence}\n")
        self._tell_all({"kind": "end", "status": status})
        silent = [rank for rank, f in failures.items() if f.kind == SILENT]
        if any(self._hosts[rank] != self._hosts[self._rank] for rank in silent):
            with contextlib.suppress(OSError):  # no process can be started: mpirun is left as it is
                kill_launcher_if_it_hangs(_SECONDS_FOR_MPIRUN)
        self._end_process(status)

    def _tell_all(self, message: Message) -> None:
        for other in list(self._others.values()):
            other.link.send(message)


@contextlib.contextmanager
def watched(
    ranks: SingleProcess,
    settings: RunSettings,
    *,
    timeout_seconds: float,
    records_read: Callable[[], int],
) -> Iterator[NoWatch]:
    """Watches the ranks while the body runs; an exception in it ends the whole job.

    Collective. ``timeout_seconds`` is that of --rank_timeout, 0 for no watch; rank 0's counts.
    ``records_read`` as for :class:`RankWatch`. Raises UserError when ranks cannot connect.
    """
    timeout_seconds = ranks.broadcast(timeout_seconds)
    if ranks.world_size == 1 or not timeout_seconds:
        yield NoWatch(ranks)
        return
    try:
        links = connect_ranks(ranks)
    except CannotConnectError as error:
        raise UserError(
            f"{error}; allow connections between the hosts, or give --rank_timeout=0 to do without "
            "a watch over the ranks."
        ) from error
    watch = RankWatch(
        ranks,
        links,
        timeout_seconds=timeout_seconds,
        records_read=records_read,
        how_to_go_on=lambda: _how_to_go_on(settings.output_dir, look=ranks.is_chief),
    )
    watch.start()
    try:
        yield watch
    except Exception as error:
        watch.fail(error)
    finally:
        watch.stop()


def _how_to_go_on(output_dir: Path, *, look: bool) -> str:
    """What to do when a rank is lost. ``look`` for the newest checkpoint: rank 0 has written it."""
    found: list[str | None] = []

    def read() -> None:
        with contextlib.suppress(Exception):
            found.append(tf.train.latest_checkpoint(str(output_dir)))

    if look:
        # A thread, since the disk may be what hangs.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(_SECONDS_TO_READ)
    if found == [None]:
        return "start again (no checkpoint was saved yet)"
    name = found[0] if found else f"the newest checkpoint in {output_dir}"
    return f"start again to resume from {name}, which is intact"
