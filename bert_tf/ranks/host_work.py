"""Work done once per host while the host's other ranks wait, for as long as it takes.

Waiting inside a single collective operation would look like a hang to Horovod, which ends the job
after some minutes. So all ranks keep asking each other whether the work is done.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass
class _Work:
    """The state of the work on one host, which ranks send to each other."""

    host: str
    is_done: bool = False
    result: Any = None
    mistake: str | None = None


def on_each_host(
    ranks: Ranks, action: Callable[[], Any], *, first_pause: float = 0.1
) -> dict[str, Any]:
    """Calls ``action`` on the first rank of every host, on all hosts at once. Collective.

    ``action`` must detect its own hangs. Ranks ask each other again after ``first_pause`` seconds,
    then after longer and longer pauses. Returns its results, by host, on every rank.

    Raises:
      UserError: ``action`` raised it on a host; raised on every rank, with the host's name.
    """
    work = _Work(socket.gethostname())
    if ranks.world_size == 1:
        try:
            return {work.host: action()}
        except UserError as error:
            raise UserError(f"host {work.host}: {error}") from error
    crashes: list[BaseException] = []

    def run() -> None:
        try:
            work.result = action()
        except UserError as error:
            work.mistake = str(error)
        except BaseException as error:  # raised again in the main thread
            crashes.append(error)
        work.is_done = True

    if ranks.local_rank == 0:
        threading.Thread(target=run, name="host_work", daemon=True).start()
    pause = first_pause
    while True:
        mine = dataclasses.replace(work) if ranks.local_rank == 0 else None
        if mine and mine.is_done and crashes:
            raise crashes[0]  # the watch ends the other ranks
        found = [other for other in ranks.gather(mine) if other is not None]
        if all(other.is_done for other in found):
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    mistakes = [f"host {other.host}: {other.mistake}" for other in found if other.mistake]
    if mistakes:
        raise UserError("; ".join(mistakes))
    return {other.host: other.result for other in found}


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
