"""Connections between the ranks of a job, beside those of MPI, which blocks when a rank is lost.

Rank 0 listens and every other rank connects to it. A message is a JSON object on a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from typing import Any

from bert_tf.ranks.distribution import SingleProcess

Message = dict[str, Any]

_SECONDS_TO_JOIN = 30.0
_SECONDS_FOR_AN_ADDRESS = 3.0
_SECONDS_TO_SEND = 1.0
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
_LOOPBACK = "127.0.0.1"


class Link:
    """One end of a connection to another rank."""

    def __init__(self, connection: socket.socket, *, rank: int, host: str) -> None:
        """``rank`` and ``host`` are those of the other end."""
        self.rank = rank
        self.host = host
        self._connection = connection
        self._connection.settimeout(_SECONDS_TO_SEND)
        self._sending = threading.Lock()
        self._unfinished = b""

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Sends if that can be done; whether the other end is there shows in what comes back."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """What has arrived, to be called when there is something to read; None at the end."""
        try:
            arrived = self._connection.recv(1 << 16)
        except OSError:
            return None
        if not arrived:
            return None
        *lines, self._unfinished = (self._unfinished + arrived).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


class CannotConnectError(Exception):
    """What kept a rank from reaching rank 0, without a full stop."""


def connect_ranks(ranks: SingleProcess) -> list[Link]:
    """This rank's connections: to all others on rank 0, to rank 0 on the others.

    Collective. Raises CannotConnectError on every rank when one of them cannot connect.
    """
    host = socket.gethostname()
    if ranks.is_chief:
        links, problem = _welcome(ranks), None
    else:
        links, problem = _join(ranks.broadcast(None), ranks.rank)
    problems = [
        f"rank {rank} on host {host} cannot connect to rank 0 at {problem}"
        for rank, (host, problem) in enumerate(ranks.gather((host, problem)))
        if problem
    ]
    if problems:
        for link in links:
            link.close()
        raise CannotConnectError(problems[0])
    return links


def _welcome(ranks: SingleProcess) -> list[Link]:
    """Rank 0's side; returns what has connected in time."""
    token = secrets.token_hex(16)
    links: list[Link] = []
    with socket.create_server(("", 0), backlog=ranks.world_size) as server:
        ranks.broadcast(
            {
                "host": socket.gethostname(),
                "addresses": own_addresses(),
                "port": server.getsockname()[1],
                "token": token,
            }
        )
        end = time.monotonic() + _SECONDS_TO_JOIN
        while len(links) < ranks.world_size - 1 and time.monotonic() < end:
            server.settimeout(max(0.1, end - time.monotonic()))
            with contextlib.suppress(OSError):
                links.append(_shake_hands(server.accept()[0], token, {"token": token}))
    return links


def _join(offer: Message, rank: int) -> tuple[list[Link], str | None]:
    """Another rank's side: the link, or the addresses that were tried in vain."""
    own_host = socket.gethostname()
    hello = {"token": offer["token"], "rank": rank, "host": own_host}
    # A host's own address leads elsewhere on another host.
    near = own_host == offer["host"]
    addresses = [address for address in offer["addresses"] if near or address != _LOOPBACK]
    for address in addresses:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((address, offer["port"]), _SECONDS_FOR_AN_ADDRESS)
            _send_hello(connection, hello)
            return [_shake_hands(connection, offer["token"], None, known=offer)], None
    return [], f"{', '.join(addresses)}, port {offer['port']}"


def _shake_hands(
    connection: socket.socket, token: str, answer: Message | None, *, known: Message | None = None
) -> Link:
    """Makes sure that the other end is of this job; raises OSError if it is not."""
    connection.settimeout(_SECONDS_FOR_AN_ADDRESS)
    try:
        with connection.makefile("rb") as lines:
            hello = json.loads(lines.readline(1 << 12))
        if not hmac.compare_digest(hello["token"], token):
            raise ConnectionError("another job")
        if answer is not None:
            _send_hello(connection, answer)
        other = hello if known is None else {"rank": 0, **known}
        return Link(connection, rank=other["rank"], host=other["host"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        connection.close()
        raise ConnectionError("no rank of this job") from error


def _send_hello(connection: socket.socket, hello: Message) -> None:
    connection.sendall(json.dumps(hello).encode() + b"\n")


def own_addresses() -> list[str]:
    """The IPv4 addresses of this host's interfaces, the loopback first."""
    found = [_LOOPBACK]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # an interface without address
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(reply[20:24]))
    return list(dict.fromkeys(found))
