"""Temporary directories that no other user can touch and that do not outlive killed processes.

All users of a host often share the directory for temporary files (``TMPDIR``), and may create
anything under a name that they guess. Files of killed processes stay there, too. So each process
locks the directories that it creates: the operating system releases a lock however the process
ends, and unlocked directories are removed at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = "bert_tf_"
_LOCK_NAME = ".in_use"


def require_private(path: Path) -> None:
    """Raises PermissionError unless ``path`` is this user's directory, writable by no others.

    Links are rejected, wherever they point.
    """
    status = path.lstat()
    reason = None
    if not stat.S_ISDIR(status.st_mode):
        reason = "it is a link or a file, not a directory"
    elif status.st_uid != os.getuid():
        reason = "it belongs to another user"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = "other users can write to it"
    if reason is not None:
        raise PermissionError(errno.EPERM, reason, str(path))


def make_private(path: Path) -> None:
    """Creates a directory that only this user can read and write, or accepts an existing one.

    Raises PermissionError as :func:`require_private` does, and OSError if creating it fails.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=stat.S_IRWXU)
    require_private(path)
    path.chmod(stat.S_IRWXU)


def user_cache(name: str) -> Path | None:
    """This package's directory ``name`` in the user's cache; None without a home directory.

    It may not exist; :func:`make_private` creates it if its parent exists.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification ignores relative paths
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "bert_tf" / name


class TemporaryDirectory(tempfile.TemporaryDirectory):
    """Like tempfile's, but :func:`remove_abandoned` removes it if the process is killed."""

    def __init__(self, kind: str) -> None:
        """``kind`` is a word that becomes part of its name; removes abandoned ones first."""
        remove_abandoned()
        super().__init__(prefix=f"{_PREFIX}{kind}_")
        lock = Path(self.name, _LOCK_NAME)
        new = lock.with_suffix(".new")
        self._lock = open(new, "wb")  # noqa: SIM115 (closed with the object)
        with contextlib.suppress(OSError):  # on a disk without locks, nothing is ever removed
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(lock)  # it gets this name only once it is locked

    def cleanup(self) -> None:
        """Removes the directory, as far as possible."""
        with contextlib.suppress(OSError):
            super().cleanup()
        self._lock.close()


def remove_abandoned() -> None:
    """Removes this user's temporary directories whose processes have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, another user's, or just removed
            require_private(path)
            with open(path / _LOCK_NAME, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
