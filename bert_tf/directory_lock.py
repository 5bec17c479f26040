"""One run a directory: a lock that names its holder and ends with it, however it ends.

The operating system's lock on the file answers on one machine and on shared disks that know locks.
For a disk that does not carry locks from host to host, the holder also renews the file's time
every few seconds, and whoever finds the name of another host in it looks whether that goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bert_tf.console import say
from bert_tf.errors import UserError

LOCK_NAME = ".lock"

_SECONDS_BETWEEN_SIGNS = 5.0
# Network file systems may show a file's time some seconds late.
_SIGNS_TO_WAIT_FOR = 4
_SECONDS_BETWEEN_TRIES = 0.1
_SILENT_TRIES = 10
# Why a lock could not be had: another process has it, or the disk knows none.
_MEANINGS = {
    **dict.fromkeys((errno.EACCES, errno.EAGAIN), False),
    **dict.fromkeys((errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)),
}


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds, or held, the lock of a directory.

    Attributes:
      host, process: hostname and process id.
      since: local time, ``YYYY-MM-DD HH:MM:SS``.
    """

    host: str
    process: int
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host} (since {self.since})"


@contextlib.contextmanager
def hold_directory(
    directory: Path,
    *,
    flag: str,
    wait: bool = False,
    seconds_between_signs: float = _SECONDS_BETWEEN_SIGNS,
) -> Iterator[Holder | None]:
    """Holds the lock of ``directory`` while the body runs; creates the directory where needed.

    Yields who held it before and did not release it, having been killed or lost with its host; None
    after a regular end. A directory that was created and is still empty at the end is removed.

    Args:
      directory: what to hold.
      flag: that names the directory, for messages.
      wait: for another process that holds it; after a second, a line says so.
      seconds_between_signs: how often the holder shows that it is alive.

    Raises:
      UserError: another process holds it, or the directory cannot be written; names ``flag``.
    """
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    path = directory / LOCK_NAME
    try:
        file, before = _take(path, flag, seconds_between_signs, wait=wait)
    except OSError as error:
        raise UserError(
            f"--{flag}: cannot write to {directory} ({error.strerror}); choose another directory."
        ) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        stack.callback(_remove, path, created)
        _write(file, flag, directory)
        released = threading.Event()
        signs = threading.Thread(
            target=_give_signs, args=(file, released, seconds_between_signs), daemon=True
        )
        signs.start()
        stack.callback(signs.join)
        stack.callback(released.set)
        yield before


def _take(
    path: Path, flag: str, seconds_between_signs: float, *, wait: bool
) -> tuple[int, Holder | None]:
    """The file, which is ours now, and who is still named in it; raises UserError if in use."""
    lost, tries = None, 0
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file, is_locked = _open_locked(path)
        except FileNotFoundError:
            if not wait:
                raise
            continue  # its holder has just removed the directory
        before = _holder(file)
        is_of_this_host = before is None or before.host == socket.gethostname()
        if is_of_this_host and is_locked is not None:
            in_use = not is_locked
        else:
            in_use = before is not None and _gives_signs(file, seconds_between_signs)
        if in_use:
            os.close(file)
            holder = before or "another process"
            if not wait:
                raise UserError(
                    f"--{flag}: {path.parent} is in use by {holder}; wait for it to end, or choose "
                    "another directory."
                )
            tries += 1
            if tries == _SILENT_TRIES:
                say(
                    f"{path.parent} is in use by {holder}; waiting for it to end", stream=sys.stderr
                )
            time.sleep(_SECONDS_BETWEEN_TRIES)
            continue
        if is_locked is not False:
            return file, before or lost
        # A file server may keep the lock of a host that is lost; a new file has none.
        lost = before
        path.unlink(missing_ok=True)
        os.close(file)


def _open_locked(path: Path) -> tuple[int, bool | None]:
    """The open file, and whether it could be locked; None where the disk knows no locks."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        is_locked: bool | None = True
        try:
            # Of the two kinds of locks the one that children do not inherit, and that network file
            # systems carry from host to host.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_locked = _MEANINGS.get(error.errno)
            if error.errno not in _MEANINGS:
                os.close(file)
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file, is_locked
        os.close(file)  # its holder has just removed it


def _holder(file: int) -> Holder | None:
    """Who is named in the file; None in an empty or half-written one."""
    content = os.pread(file, 4096, 0)
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _gives_signs(file: int, seconds_between_signs: float) -> bool:
    """Whether a process renews the time of the file."""
    seen = os.fstat(file).st_mtime_ns
    for _ in range(_SIGNS_TO_WAIT_FOR):
        time.sleep(seconds_between_signs)
        if os.fstat(file).st_mtime_ns != seen:
            return True
    return False


def _write(file: int, flag: str, directory: Path) -> None:
    holder = Holder(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(dataclasses.asdict(holder)).encode(), 0)
    except OSError as error:
        raise UserError(
            f"--{flag}: cannot write to {directory} ({error.strerror}); free space there or "
            "choose another directory."
        ) from error


def _give_signs(file: int, released: threading.Event, seconds: float) -> None:
    while not released.wait(seconds):
        with contextlib.suppress(OSError):  # a disk that does not answer now may do so next time
            os.utime(file)


def _remove(path: Path, created: list[Path]) -> None:
    """Removes the lock, and the directories made for it that stayed empty."""
    with contextlib.suppress(OSError):
        path.unlink()
        for directory in created:
            directory.rmdir()
