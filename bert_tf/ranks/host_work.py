"""Work done once per host while the host's other ranks wait, for as long as it takes.

Waiting inside a single collective operation would look like a hang to Horovod, which ends the job
after some minutes. So all ranks keep asking each other whether the work is done.
"""

from __future__ import annotations

import concurrent.futures
import signal
import socket
import subprocess
import threading
import time
from typing import Any, Callable

from bert_tf.ranks.ranks import Ranks
from bert_tf.util.errors import UserError

_LONGEST_PAUSE_SECONDS = 5.0
_SHOWN_CHARACTERS = 80


def on_each_host(
    ranks: Ranks, action: Callable[[], Any], *, first_pause: float = 0.1
) -> dict[str, Any]:
    """Calls ``action`` on the first rank of every host, on all hosts at once. Collective.

    ``action`` must detect its own hangs. Ranks ask each other again after ``first_pause`` seconds,
    then after longer and longer pauses. Returns its results, by host, on every rank.

    Raises:
      UserError: ``action`` raised it on a host; raised on every rank, with the host's name.
    """
    host = socket.gethostname()
    if ranks.world_size == 1:
        try:
            return {host: action()}
        except UserError as error:
            raise UserError(f"host {host}: {error}") from error
    work: concurrent.futures.Future[Any] = concurrent.futures.Future()
    if ranks.local_rank == 0:
        # Not an executor's thread, which would be waited for when this process ends.
        threading.Thread(target=_do, args=(work, action), name="host_work", daemon=True).start()
    pause = first_pause
    while True:
        states = ranks.gather((host, _outcome(work)) if ranks.local_rank == 0 else None)
        outcomes = dict(filter(None, states))
        if None not in outcomes.values():
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    mistakes = [f"host {at}: {mistake}" for at, (_, mistake) in outcomes.items() if mistake]
    if mistakes:
        raise UserError("; ".join(mistakes))
    return {at: result for at, (result, _) in outcomes.items()}


def _do(work: concurrent.futures.Future[Any], action: Callable[[], Any]) -> None:
    try:
        work.set_result(action())
    except BaseException as error:  # raised again in the main thread
        work.set_exception(error)


def _outcome(work: concurrent.futures.Future[Any]) -> tuple[Any, str | None] | None:
    """The result of work and a user's mistake in it; None before its end; raises other errors."""
    if not work.done():
        return None
    try:
        return work.result(), None
    except UserError as error:
        return None, str(error)


def run_command(command: str, *, flag: str) -> None:
    """Runs a user's command in a shell, with this process's output; UserError if it fails."""
    process = subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL)
    status = process.wait()
    if status == 0:
        return
    ended = f"with status {status}"
    if status < 0:
        ended = f"by signal {signal.Signals(-status).name}"
    shown = command if len(command) <= _SHOWN_CHARACTERS else f"{command[:_SHOWN_CHARACTERS]}..."
    raise UserError(f"--{flag}={shown} ended {ended}; run it there by hand to find out why.")
