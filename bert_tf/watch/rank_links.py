"""Connections between ranks, independent of MPI, which blocks when a rank is lost.

Each message is a JSON object on one line.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

Message = dict[str, Any]

_MOST_BYTES = 1 << 16


class UnreadableMessageError(Exception):
    """Received data is not a message; the text explains why, without a full stop."""


class Link:
    """One end of a connection to another rank."""

    def __init__(
        self, connection: socket.socket, *, rank: int, host: str, seconds_to_send: float = 1.0
    ) -> None:
        """``rank`` and ``host`` are those of the other end."""
        self.rank = rank
        self.host = host
        self._connection = connection
        self._connection.settimeout(seconds_to_send)
        self._sending = threading.Lock()
        self._unsent = b""
        self._unfinished = b""

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Sends if possible; only what the other end sends back shows whether it is alive.

        The rest of a partially sent line is sent before the next one.
        """
        with self._sending, contextlib.suppress(OSError):
            self._unsent += json.dumps(message).encode() + b"\n"
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]

    def receive(self) -> list[Message] | None:
        """The messages that have arrived, once there is something to read; None at the end.

        Raises UnreadableMessageError for anything else than messages.
        """
        try:
            arrived = self._connection.recv(_MOST_BYTES)
        except OSError:
            return None
        if not arrived:
            return None
        *lines, self._unfinished = (self._unfinished + arrived).split(b"\n")
        if len(self._unfinished) > _MOST_BYTES:
            raise UnreadableMessageError(f"more than {_MOST_BYTES} bytes without an end of line")
        return [_parse(line) for line in lines]

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def _parse(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor JSON
        raise UnreadableMessageError(f"{type(error).__name__} in {line[:40]!r}") from error
    if not isinstance(message, dict) or "kind" not in message:
        raise UnreadableMessageError(f"{line[:40]!r}")
    return message
