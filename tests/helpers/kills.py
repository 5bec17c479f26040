"""Kills between any two system calls that change a disk."""

from __future__ import annotations

import os
import sys
from typing import Callable

_CHANGES = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


def killed_at(number: int, action: Callable[[], object]) -> bool:
    """Runs ``action`` in a child that dies at the change of the disk of this number, from 0.

    Files are opened for writing, renamed and removed by it as they are; no ``finally`` block of its
    runs after the kill. Returns whether it was killed: False once ``number`` is past the last
    change, which is then complete.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sys.addaudithook(_Killer(number))
            action()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -9), "the action failed by itself"
    return status != 0


class _Killer:
    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, event: str, arguments: tuple) -> None:
        if event in _CHANGES or (event == "open" and arguments[2] & os.O_ACCMODE):
            if self._left == 0:
                os.kill(os.getpid(), 9)
            self._left -= 1
