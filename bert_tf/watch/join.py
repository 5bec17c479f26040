"""Connects the ranks of a job: rank 0 listens, and every other rank connects to it.

These connections are independent of MPI, which blocks if a rank is lost. Other clients that
connect, send data or stay silent must not disturb or delay this. So both sides prove by Python's
own challenges (multiprocessing.connection) that they know the job's secret, which they received
through Horovod and which never crosses these connections; and each connection to rank 0 is served
by a thread. A rank's last answer to rank 0 shows that it does not give this connection up as too
slow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from bert_tf.ranks.ranks import Ranks

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.02
_MOST_WAITING = 4096  # a connection that does not fit is retried after a second or more
_MOST_BYTES = 16  # of a rank's number

# Raised if what is at the other end of a connection is not a rank of this job.
_STRANGE = (OSError, EOFError, AuthenticationError, AssertionError, ValueError)


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
    """Seconds for all ranks to join, for an answer from an address, and between two rounds."""

    to_join: float = 30.0
    to_answer: float = 3.0
    between_rounds: float = 0.1


_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Offer:
    """What rank 0 sends to the others through Horovod: the job's secret, and where it listens."""

    secret: bytes
    port: int


@dataclasses.dataclass(frozen=True)
class Peers:
    """The other ranks that a rank is connected to: all of them on rank 0, rank 0 on the others.

    Attributes:
      connections: by rank.
      hosts: the host names of all ranks, by rank.
    """

    connections: Mapping[int, Connection]
    hosts: Mapping[int, str]


def connect_ranks(ranks: Ranks, limits: Limits = _LIMITS) -> Peers:
    """Connects this rank to its peers.

    Collective. Raises CannotConnectError on every rank if one of them cannot connect.
    """
    places = ranks.gather(local_place())
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
    return Peers(joined, {rank: place.host for rank, place in enumerate(places)})


def _listen(ranks: Ranks, places: Sequence[Place], limits: Limits) -> dict[int, Connection]:
    """Rank 0's side; returns the connections of the ranks that joined in time."""
    joined: dict[int, Connection] = {}
    end = time.monotonic() + limits.to_join
    is_local = all(map(places[0].shares_loopback, places))
    address = (_LOOPBACK if is_local else "", 0)
    with socket.create_server(address, backlog=_MOST_WAITING) as server:
        offer = Offer(secrets.token_bytes(32), server.getsockname()[1])
        ranks.broadcast(offer)
        server.settimeout(_POLL_SECONDS)
        while len(joined) < ranks.world_size - 1 and time.monotonic() < end:
            try:
                client, _ = server.accept()
            except OSError:  # nobody came, somebody is gone already, or too many files are open
                time.sleep(_POLL_SECONDS)
                continue
            connection = _connection(client, limits)
            arguments = (connection, offer.secret, joined)
            threading.Thread(target=_admit, args=arguments, daemon=True).start()
    return dict(joined)


def _admit(connection: Connection, secret: bytes, joined: dict[int, Connection]) -> None:
    """Adds a connection to those that ``joined``, or closes it if it is not a rank's."""
    try:
        deliver_challenge(connection, secret)
        answer_challenge(connection, secret)
        joined[int(connection.recv_bytes(_MOST_BYTES))] = connection
    except _STRANGE:
        connection.close()


def join_rank_0(
    offer: Offer, places: Sequence[Place], rank: int, limits: Limits = _LIMITS
) -> tuple[dict[int, Connection], str | None]:
    """The other ranks' side: the connection to rank 0, or the addresses that were tried."""
    end = time.monotonic() + limits.to_join
    near = places[rank].shares_loopback(places[0])
    addresses = (_LOOPBACK,) if near else places[0].addresses
    while addresses and time.monotonic() < end:
        for address in addresses:  # a bridge may have the address of another one on rank 0's host
            with contextlib.suppress(*_STRANGE), contextlib.ExitStack() as unless_it_is_rank_0:
                client = socket.create_connection((address, offer.port), limits.to_answer)
                connection = unless_it_is_rank_0.enter_context(_connection(client, limits))
                answer_challenge(connection, offer.secret)
                deliver_challenge(connection, offer.secret)
                connection.send_bytes(str(rank).encode())
                unless_it_is_rank_0.pop_all()
                return {0: connection}, None
        time.sleep(limits.between_rounds)
    where = ", ".join(f"{address} port {offer.port}" for address in addresses)
    return {}, where or "any address: no network of its host leads there"


def _connection(client: socket.socket, limits: Limits) -> Connection:
    """A connection of messages, each of which has to be sent or received within the limit."""
    client.settimeout(None)
    limit = struct.pack("ll", *divmod(int(limits.to_answer * 1e6), 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        client.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(client.detach())


def local_place() -> Place:
    """Where this rank runs."""
    host = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        network = host
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # an interface without an address
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                addresses.append(socket.inet_ntoa(reply[20:24]))
    others = dict.fromkeys(address for address in addresses if not address.startswith("127."))
    return Place(host, network, tuple(others))
