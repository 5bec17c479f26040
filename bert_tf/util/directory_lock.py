"""One run per directory: a lock that names its holder and ends with it, even if it is killed.

The operating system's file lock suffices on a single machine and on shared disks that support
locks. For disks that do not share locks between hosts, the holder also updates the file's
modification time every few seconds; a process that finds another host's name in the file waits to
see whether these updates continue.
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

from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files

LOCK_NAME = ".lock"

_HEARTBEAT_SECONDS = 5.0
# Network file systems may report modification times several seconds late.
_HEARTBEATS_TO_WAIT_FOR = 4
_SECONDS_BETWEEN_TRIES = 0.1
_SILENT_TRIES = 10
# errno -> why locking failed: False if another process holds the lock, None if the disk has none.
_IS_LOCKED_BY_ERRNO = {
    **dict.fromkeys((errno.EACCES, errno.EAGAIN), False),
    **dict.fromkeys((errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)),
}


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds, or held, the lock of a directory.

    Attributes:
      host, process: hostname and process id.
      since: local time, ``YYYY-MM-DD HH:MM:SS``.
    """

    host: str
    process: int
    since: str

    @property
    def may_be_alive(self) -> bool:
        """False only if it is known to have ended, which can be checked on the same host."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # another user's process
        return True

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host} (since {self.since})"


@contextlib.contextmanager
def hold_directory(
    directory: Path,
    *,
    flag: str,
    wait: bool = False,
    heartbeat_seconds: float = _HEARTBEAT_SECONDS,
) -> Iterator[Holder | None]:
    """Holds the lock of ``directory`` while the body runs; creates the directory if needed.

    Yields the previous holder if it did not release the lock because it or its host was killed;
    None after a normal end. Removes temporary files that killed holders left there, and at the end
    the directory, if it was created here and is still empty.

    ``flag`` names the directory in messages. To ``wait`` for another holder prints a line after a
    second. The holder shows that it is alive every ``heartbeat_seconds``. Raises UserError if
    another process holds the lock, or the directory cannot be written.
    """
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    path = directory / LOCK_NAME
    try:
        file, before = _take(path, flag, heartbeat_seconds, wait=wait)
    except OSError as error:
        raise UserError(
            f"--{flag}: cannot write to {directory} ({error.strerror}); choose another directory."
        ) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        stack.callback(_remove, path, created)
        _write(file, flag, directory)
        remove_partial_files(directory)
        released = threading.Event()
        heartbeats = threading.Thread(
            target=_send_heartbeats, args=(file, released, heartbeat_seconds), daemon=True
        )
        heartbeats.start()
        stack.callback(heartbeats.join)
        stack.callback(released.set)
        yield before


def named_holder(directory: Path) -> Holder | None:
    """The process that holds a directory's lock or was killed while holding it, or None.

    Locks and writes nothing.
    """
    try:
        file = os.open(directory / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _holder(file)
    finally:
        os.close(file)


def is_abandoned(directory: Path) -> bool:
    """Whether a process that has ended left its lock there. Locks and writes nothing."""
    holder = named_holder(directory)
    return (directory / LOCK_NAME).exists() and not (holder and holder.may_be_alive)


def _take(
    path: Path, flag: str, heartbeat_seconds: float, *, wait: bool
) -> tuple[int, Holder | None]:
    """Takes the lock; returns the file and the holder it still names; UserError if in use."""
    lost, tries = None, 0
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file, is_locked = _open_locked(path)
        except FileNotFoundError:
            if not wait:
                raise
            continue  # the holder has just removed the directory
        before = _holder(file)
        is_from_this_host = before is None or before.host == socket.gethostname()
        if is_from_this_host and is_locked is not None:
            in_use = not is_locked
        else:
            in_use = before is not None and _has_heartbeat(file, heartbeat_seconds)
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
        # A file server may keep the lock of a lost host; a new file starts unlocked.
        lost = before
        if _is_at(path, file):  # otherwise another waiting process was faster
            path.unlink(missing_ok=True)
        os.close(file)


def _open_locked(path: Path) -> tuple[int, bool | None]:
    """The open file, and whether it could be locked; None if the disk has no locks."""
    while True:
        # Reject links: in a directory that others can write to, one may point anywhere.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        is_locked: bool | None = True
        try:
            # lockf, not flock: children do not inherit it, and network file systems share it
            # between hosts.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_locked = _IS_LOCKED_BY_ERRNO.get(error.errno or 0)
            if error.errno not in _IS_LOCKED_BY_ERRNO:
                os.close(file)
                raise
        if _is_at(path, file):
            return file, is_locked
        os.close(file)  # the previous holder has just removed it


def _is_at(path: Path, file: int) -> bool:
    """Whether an open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(file: int) -> Holder | None:
    """The holder named in the file; None if it is empty or half-written."""
    content = os.pread(file, 4096, 0)
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _has_heartbeat(file: int, heartbeat_seconds: float) -> bool:
    """Whether another process keeps updating the modification time of the file."""
    seen = os.fstat(file).st_mtime_ns
    for _ in range(_HEARTBEATS_TO_WAIT_FOR):
        time.sleep(heartbeat_seconds)
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


def _send_heartbeats(file: int, released: threading.Event, seconds: float) -> None:
    while not released.wait(seconds):
        with contextlib.suppress(OSError):  # the disk may respond again next time
            os.utime(file)


def _remove(path: Path, created: list[Path]) -> None:
    """Removes the lock file, and directories created for it that are still empty."""
    with contextlib.suppress(OSError):
        path.unlink()
        for directory in created:
            directory.rmdir()
