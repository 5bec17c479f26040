"""Connects the ranks of a job: rank 0 listens, and every other rank connects to it.

Other clients that connect, send data or stay silent must not disturb or delay this. So both sides
prove that they know the job's secret, which they received through Horovod and which is never sent
over these connections; every message has a fixed length; connections are served concurrently; and a
single deadline applies:

    rank 0: a nonce
    rank r: a nonce, r, and the HMAC of both nonces and r
    rank 0: the HMAC of the same, for the other direction
    rank r: a byte

A rank that finds rank 0 too slow gives its connection up and connects again. The byte says that it
will not: rank 0 counts only such connections, or else it could stop listening too early.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from bert_tf.ranks.ranks import Ranks

Message = dict[str, Any]

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # nothing is sent to it
_POLL_SECONDS = 0.02

_NONCE_BYTES = 32
_RANK = struct.Struct("!I")
_PROOF_BYTES = 32  # SHA-256
_ANSWER_BYTES = _NONCE_BYTES + _RANK.size + _PROOF_BYTES
_TO_RANK_0, _FROM_RANK_0 = b"to rank 0", b"from rank 0"
_STAYS = b"\x01"

_MOST_BYTES = 1 << 16  # of a message


class CannotConnectError(Exception):
    """Explains why a rank could not reach rank 0, without a full stop."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rank runs.

    Attributes:
      host: host name.
      network: name of the network namespace, unique except for clones of a running machine.
      addresses: IPv4 addresses of its interfaces, except the loopback.
    """

    host: str
    network: str
    addresses: tuple[str, ...]

    def shares_loopback(self, other: Place) -> bool:
        """Whether each can reach the other through the loopback interface."""
        return (self.network, self.addresses) == (other.network, other.addresses)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds for all ranks to join, to try an address, and between two rounds.

    With more than ``most_unproven`` unauthenticated connections, the oldest is closed; ranks will
    reconnect.
    """

    to_join: float = 30.0
    for_an_address: float = 3.0
    between_rounds: float = 0.1
    most_unproven: int = 256


_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Offer:
    """What rank 0 sends to the others through Horovod: the job's secret and its addresses."""

    secret: bytes
    listens_at: tuple[tuple[str, int], ...]


def connect_ranks(ranks: Ranks, limits: Limits = _LIMITS) -> list[Link]:
    """Returns this rank's connections: to all others on rank 0, to rank 0 on the others.

    Collective. Raises CannotConnectError on every rank if one of them cannot connect.
    """
    places = ranks.gather(_local_place())
    if ranks.is_chief:
        joined, problem = _listen(ranks, places, limits), None
    else:
        joined, problem = join_rank_0(ranks.broadcast(None), places, ranks.rank, limits)
    problems = [
        f"rank {rank} on host {places[rank].host} cannot connect to rank 0 at {problem}"
        for rank, problem in enumerate(ranks.gather(problem))
        if problem
    ]
    if problems:
        for connection in joined.values():
            connection.close()
        raise CannotConnectError(problems[0])
    return [
        Link(connection, rank=rank, host=places[rank].host) for rank, connection in joined.items()
    ]


def _listen(ranks: Ranks, places: Sequence[Place], limits: Limits) -> dict[int, socket.socket]:
    """Rank 0's side; returns the connections of the ranks that joined in time."""
    with contextlib.ExitStack() as stack:
        servers = []
        # A connection that does not fit into the queue is retried after a second or more.
        backlog = limits.most_unproven + ranks.world_size
        for address in listening_addresses(places):
            with contextlib.suppress(OSError):  # the interface may be gone; there may be others
                server = socket.create_server((address, 0), backlog=backlog)
                servers.append(stack.enter_context(server))
        secret = secrets.token_bytes(_NONCE_BYTES)
        ranks.broadcast(Offer(secret, tuple(server.getsockname() for server in servers)))
        return _Server(secret, limits).admit(servers, ranks.world_size - 1)


class _Server:
    """Serves all connections to rank 0 concurrently, each in a thread."""

    def __init__(self, secret: bytes, limits: Limits) -> None:
        self._secret = secret
        self._limits = limits
        self._end = time.monotonic() + limits.to_join
        self._changing = threading.Lock()
        self._unproven: dict[socket.socket, None] = {}  # oldest first
        self._joined: dict[int, socket.socket] = {}

    def admit(self, servers: Sequence[socket.socket], missing: int) -> dict[int, socket.socket]:
        """The connections of the ``missing`` ranks, as far as they join by the deadline."""
        with selectors.DefaultSelector() as selector:
            for server in servers:
                server.setblocking(False)
                selector.register(server, selectors.EVENT_READ, server)
            while len(self._joined) < missing and (left := self._end - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, _POLL_SECONDS)):
                    self._accept(key.data)
        self._close_all_but(0)
        return self._joined

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError as error:  # it has already disconnected, or too many files are open
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._close_all_but(len(self._unproven) - 1)
            return
        with self._changing:
            self._unproven[connection] = None
        threading.Thread(target=self._serve, args=[connection], daemon=True).start()
        self._close_all_but(self._limits.most_unproven)

    def _close_all_but(self, newest: int) -> None:
        with self._changing:
            while len(self._unproven) > max(newest, 0):
                connection = next(iter(self._unproven))
                del self._unproven[connection]
                with contextlib.suppress(OSError):  # its thread then closes it
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as unless_it_is_a_rank:
            unless_it_is_a_rank.enter_context(connection)
            unless_it_is_a_rank.callback(self._forget, connection)
            rank = _proven_rank(connection, self._secret, self._end)
            with self._changing:
                if connection in self._unproven:
                    unless_it_is_a_rank.pop_all()
                    del self._unproven[connection]
                    self._joined[rank] = connection

    def _forget(self, connection: socket.socket) -> None:
        with self._changing:
            self._unproven.pop(connection, None)


def _proven_rank(connection: socket.socket, secret: bytes, until: float) -> int:
    """The rank at the other end; raises OSError if it is not of this job, or does not stay."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(nonce)
    answer = receive(connection, _ANSWER_BYTES, until)
    claim, proof = answer[:-_PROOF_BYTES], answer[-_PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, _TO_RANK_0, nonce + claim)):
        raise ConnectionError("wrong secret")
    connection.sendall(_proof(secret, _FROM_RANK_0, nonce + claim))
    receive(connection, len(_STAYS), until)
    return _RANK.unpack(claim[_NONCE_BYTES:])[0]


def join_rank_0(
    offer: Offer, places: Sequence[Place], rank: int, limits: Limits = _LIMITS
) -> tuple[dict[int, socket.socket], str | None]:
    """The other ranks' side: the connection to rank 0, or the addresses that were tried."""
    end = time.monotonic() + limits.to_join
    near = places[rank].shares_loopback(places[0])
    there = [place for place in offer.listens_at if (place[0] == _LOOPBACK) == near]
    while there and time.monotonic() < end:
        for place in there:
            now = time.monotonic()
            # A failed attempt proves little, since the queue may be full for a moment.
            until = min(now + limits.for_an_address, now + (end - now) / len(there))
            with contextlib.suppress(OSError), contextlib.ExitStack() as unless_it_is_rank_0:
                connection = socket.create_connection(place, max(until - now, 0.01))
                unless_it_is_rank_0.enter_context(connection)
                _prove(connection, offer.secret, rank, until)
                unless_it_is_rank_0.pop_all()
                return {0: connection}, None
        time.sleep(limits.between_rounds)
    where = ", ".join(f"{address} port {port}" for address, port in there)
    return {}, where or "any address: no network of its host leads there"


def _prove(connection: socket.socket, secret: bytes, rank: int, until: float) -> None:
    """Authenticates as ``rank``; raises OSError if the other end is not rank 0 of this job."""
    nonce = receive(connection, _NONCE_BYTES, until)
    claim = secrets.token_bytes(_NONCE_BYTES) + _RANK.pack(rank)
    connection.sendall(claim + _proof(secret, _TO_RANK_0, nonce + claim))
    proof = receive(connection, _PROOF_BYTES, until)
    if not hmac.compare_digest(proof, _proof(secret, _FROM_RANK_0, nonce + claim)):
        raise ConnectionError("wrong secret")
    connection.sendall(_STAYS)


def receive(connection: socket.socket, count: int, until: float) -> bytes:
    """Receives exactly ``count`` bytes; OSError if they do not arrive by ``until``."""
    received = b""
    while len(received) < count:
        left = until - time.monotonic()
        if left <= 0:
            raise socket.timeout("too slow")
        connection.settimeout(left)
        arrived = connection.recv(count - len(received))
        if not arrived:
            raise ConnectionError("connection closed")
        received += arrived
    return received


def _proof(secret: bytes, direction: bytes, nonces_and_rank: bytes) -> bytes:
    return hmac.digest(secret, direction + nonces_and_rank, "sha256")


def source_towards(address: str) -> str | None:
    """The source address of packets to ``address``; None if there is no route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))
        except OSError:
            return None
        return probe.getsockname()[0]


def listening_addresses(
    places: Sequence[Place], source_towards: Callable[[str], str | None] = source_towards
) -> list[str]:
    """The addresses by which the other ranks reach rank 0; ``places`` are by rank.

    The loopback for ranks on its host; for other hosts, the source addresses of packets to them.
    """
    local = places[0]
    near = any(local.shares_loopback(other) for other in places[1:])
    # A virtual bridge has the same address on many hosts but does not connect them.
    far = {
        address
        for other in places[1:]
        if not local.shares_loopback(other)
        for address in other.addresses
        if address not in local.addresses
    }
    sources = {source for address in far if (source := source_towards(address))}
    return [*([_LOOPBACK] if near else []), *sorted(sources)]


def _local_place() -> Place:
    host = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        network = host
    return Place(host, network, tuple(local_addresses()))


def local_addresses() -> list[str]:
    """The IPv4 addresses of this host's interfaces, except the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # an interface without an address
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(reply[20:24]))
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


class UnreadableMessageError(Exception):
    """Received data is not a message; the text explains why, without a full stop."""


class Link:
    """One end of a connection to another rank, independent of MPI, which blocks if a rank is lost.

    Each message is a JSON object on one line.
    """

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
