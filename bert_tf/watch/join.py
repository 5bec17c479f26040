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
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from bert_tf.ranks.ranks import Ranks
from bert_tf.watch.rank_links import Link

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # nothing is sent to it

_NONCE_BYTES = 32
_RANK = struct.Struct("!I")
_PROOF_BYTES = 32  # SHA-256
_ANSWER_BYTES = _NONCE_BYTES + _RANK.size + _PROOF_BYTES
_TO_RANK_0, _FROM_RANK_0 = b"to rank 0", b"from rank 0"
_STAYS = b"\x01"


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
        joined, problem = _welcome(ranks, places, limits), None
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


def _welcome(ranks: Ranks, places: Sequence[Place], limits: Limits) -> dict[int, socket.socket]:
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
        return _Reception(servers, secret, ranks.world_size - 1, limits).admit_all()


class _Newcomer:
    """A connection to rank 0 that is not yet authenticated as a rank."""

    def __init__(self, connection: socket.socket) -> None:
        """Sends the challenge; raises OSError if the connection is closed."""
        self.connection = connection
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._received = b""
        self._proven_rank: int | None = None
        connection.setblocking(False)
        connection.send(self._nonce)

    def read(self, secret: bytes) -> int | None:
        """Its rank once it is authenticated and stays; None until then.

        Raises OSError if it turns out not to be a rank of this job, or has left.
        """
        missing = _ANSWER_BYTES - len(self._received)
        arrived = self.connection.recv(missing or len(_STAYS))
        if not arrived:
            raise ConnectionError("connection closed")
        if not missing:
            return self._proven_rank
        self._received += arrived
        if len(self._received) < _ANSWER_BYTES:
            return None
        claim, proof = self._received[:-_PROOF_BYTES], self._received[-_PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(secret, _TO_RANK_0, self._nonce + claim)):
            raise ConnectionError("wrong secret")
        self.connection.send(_proof(secret, _FROM_RANK_0, self._nonce + claim))
        (self._proven_rank,) = _RANK.unpack(claim[_NONCE_BYTES:])
        return None


class _Reception:
    """Serves all connections to rank 0 concurrently."""

    def __init__(
        self, servers: Sequence[socket.socket], secret: bytes, missing: int, limits: Limits
    ) -> None:
        self._servers = servers
        self._secret = secret
        self._missing = missing
        self._limits = limits
        self._newcomers: dict[socket.socket, _Newcomer] = {}  # oldest first
        self._joined: dict[int, socket.socket] = {}

    def admit_all(self) -> dict[int, socket.socket]:
        """The connections of all ranks that join by the deadline."""
        end = time.monotonic() + self._limits.to_join
        with selectors.DefaultSelector() as self._selector:
            for server in self._servers:
                server.setblocking(False)
                self._selector.register(server, selectors.EVENT_READ)
            while len(self._joined) < self._missing and (left := end - time.monotonic()) > 0:
                for key, _ in self._selector.select(left):
                    if key.fileobj in self._newcomers:
                        self._read(key.fileobj)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._servers:
                        self._accept(key.fileobj)
            for connection in list(self._newcomers):
                self._dismiss(connection)
        return self._joined

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError as error:  # it has already disconnected, or too many files are open
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(0)
            return
        try:
            self._newcomers[connection] = _Newcomer(connection)
        except OSError:
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ)
        self._make_room(self._limits.most_unproven)

    def _make_room(self, most: int) -> None:
        if len(self._newcomers) > most:
            self._dismiss(next(iter(self._newcomers)))

    def _read(self, connection: socket.socket) -> None:
        try:
            rank = self._newcomers[connection].read(self._secret)
        except OSError:
            self._dismiss(connection)
            return
        if rank is None:
            return
        del self._newcomers[connection]
        self._selector.unregister(connection)
        self._joined[rank] = connection

    def _dismiss(self, connection: socket.socket) -> None:
        del self._newcomers[connection]
        self._selector.unregister(connection)
        connection.close()


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
