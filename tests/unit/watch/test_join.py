"""How ranks find each other, on real sockets, among connections that are none of theirs."""

import contextlib
import errno
import functools
import socket
import struct
import threading
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import pytest

from bert_tf.util.errors import UserError
from bert_tf.watch import watch
from bert_tf.watch.join import (
    CannotConnectError,
    Limits,
    Offer,
    Place,
    connect_ranks,
    join_rank_0,
    local_place,
)
from tests.helpers.thread_ranks import LIMIT, ThreadRank, run_ranks

DEFAULT_LIMITS = Limits()
HERE = Place("here", "network", ())
NOW = struct.pack("ll", LIMIT, 0)


def connect(offer):
    """A connection to rank 0 by somebody."""
    client = socket.create_connection(("127.0.0.1", offer.port), LIMIT)
    client.settimeout(None)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, NOW)
    return Connection(client.detach())


def is_dismissed(stranger):
    """Waits until rank 0 has closed a connection, whatever it said before."""
    with contextlib.suppress(ConnectionResetError, EOFError):
        while True:
            stranger.recv_bytes()
    return True


def close(peers):
    for own in peers:
        for connection in own.connections.values():
            connection.close()


def connect_after(action, size, limits=DEFAULT_LIMITS):
    """The peers of ``size`` ranks, where an action comes before ranks other than 0 join.

    That is ``action(offer)``, on rank 1 alone. Those that come after rank 1 wait until it is done.
    """
    done = threading.Event()

    class Waiting(ThreadRank):
        def broadcast(self, value):
            offer = super().broadcast(value)
            if self.rank == 1:
                try:
                    action(offer)
                finally:
                    done.set()
            elif self.rank > 1:
                assert done.wait(LIMIT)
            return offer

    return run_ranks(size, lambda rank: connect_ranks(Waiting(rank.rank, rank.board), limits))


def assert_connected(peers, size):
    """Every rank has the connections it should have, and what one end sends the other receives."""
    assert not [own for own in peers if isinstance(own, Exception)], peers
    assert sorted(peers[0].connections) == list(range(1, size))
    for rank, connection in peers[0].connections.items():
        assert peers[rank].connections.keys() == {0}
        assert peers[rank].hosts == dict.fromkeys(range(size), socket.gethostname())
        other = peers[rank].connections[0]
        for sender, receiver in ((connection, other), (other, connection)):
            sender.send_bytes(b"to %d" % rank)
            assert receiver.recv_bytes() == b"to %d" % rank


def test_every_rank_connects_to_rank_0():
    peers = run_ranks(3, connect_ranks)
    assert_connected(peers, 3)
    peers[0].connections[1].close()
    with pytest.raises(EOFError):
        peers[1].connections[0].recv_bytes()
    close(peers)


@pytest.mark.parametrize("sent", [b"#WELCOME#", b"x" * 300, b""], ids=["guess", "long", "empty"])
def test_a_stranger_that_talks_is_dismissed(sent):
    strangers = []

    def talk(offer):
        with connect(offer) as stranger:
            stranger.send_bytes(sent)
            strangers.append(is_dismissed(stranger))

    peers = connect_after(talk, 2)
    assert strangers == [True]
    assert_connected(peers, 2)
    close(peers)


def test_strangers_that_keep_silent_or_stop_in_the_middle_delay_nobody():
    """As many as would take far more than the whole time if they were waited for in turn."""
    with contextlib.ExitStack() as strangers:

        def come_and_stay(offer):
            for number in range(60):
                stranger = strangers.enter_context(connect(offer))
                with socket.fromfd(stranger.fileno(), socket.AF_INET, socket.SOCK_STREAM) as raw:
                    raw.sendall(bytes(number % 4))

        peers = connect_after(come_and_stay, 3, Limits(to_join=20.0, to_answer=10.0))
        assert_connected(peers, 3)
        close(peers)


def test_a_rank_that_gives_up_before_its_last_answer_is_not_counted():
    """It connects again, and nobody else comes in between, so rank 0 must wait."""

    def join_and_leave(offer):
        for _ in range(2):
            with connect(offer) as connection:
                answer_challenge(connection, offer.secret)

    peers = connect_after(join_and_leave, 2)
    assert_connected(peers, 2)
    close(peers)


class Overheard:
    """A connection that keeps what crosses it."""

    def __init__(self, connection):
        self.connection = connection
        self.sent, self.received = [], []

    def send_bytes(self, content):
        self.sent.append(content)
        self.connection.send_bytes(content)

    def recv_bytes(self, *most):
        self.received.append(self.connection.recv_bytes(*most))
        return self.received[-1]


def test_the_secret_never_crosses_and_what_crosses_opens_nothing():
    """Who has heard a rank prove itself cannot do the same."""
    dismissed = []

    def overhear(offer):
        with connect(offer) as connection:
            heard = Overheard(connection)
            answer_challenge(heard, offer.secret)
            deliver_challenge(heard, offer.secret)
        assert len(offer.secret) == 32
        assert not [part for part in heard.sent + heard.received if offer.secret in part]
        with connect(offer) as replay:
            replay.recv_bytes()
            for part in heard.sent:
                with contextlib.suppress(OSError):
                    replay.send_bytes(part)
            dismissed.append(is_dismissed(replay))

    peers = connect_after(overhear, 3)
    assert dismissed == [True]
    assert_connected(peers, 3)
    close(peers)


def served_by(answer):
    """A server where rank 0 should be; ``answer(connection)`` is what it does."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with contextlib.suppress(OSError), connection:
                    answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return server


@pytest.mark.parametrize("answer", [
    lambda connection: connection.sendall(bytes(64)),  # a proof that is none
    lambda connection: connection.sendall(connection.recv(64)),
    lambda connection: connection.recv(1),  # silent until it is left
], ids=["guesses", "echoes", "keeps silent"])  # fmt: skip
def test_what_is_not_rank_0_is_not_joined(answer):
    with served_by(answer) as server:
        offer = Offer(bytes(32), server.getsockname()[1])
        joined, problem = join_rank_0(offer, [HERE, HERE], 1, Limits(to_join=0.3, to_answer=0.2))
    assert joined == {}
    assert problem == f"127.0.0.1 port {offer.port}"


@pytest.mark.parametrize(
    "failure", [socket.timeout, ConnectionRefusedError, OSError(errno.EHOSTUNREACH, "no route")]
)
def test_an_address_that_failed_is_tried_again(monkeypatch, failure):
    """As when the queue of rank 0 is full for longer than the time for one address."""
    create_connection, failures = socket.create_connection, iter([failure] * 5)

    def fail_at_first(address, timeout):
        for error in failures:
            raise error
        return create_connection(address, timeout)

    monkeypatch.setattr(socket, "create_connection", fail_at_first)
    limits = Limits(between_rounds=0.0)
    peers = run_ranks(2, lambda ranks: connect_ranks(ranks, limits))
    assert_connected(peers, 2)
    assert not list(failures)
    close(peers)


def test_a_rank_that_cannot_connect_is_named_on_every_rank(monkeypatch, tmp_path):
    def refuse(address, timeout):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    connect = functools.partial(connect_ranks, limits=Limits(to_join=0.3))
    monkeypatch.setattr(watch, "connect_ranks", connect)
    errors = run_ranks(2, connect)
    assert all(isinstance(error, CannotConnectError) for error in errors)
    assert str(errors[0]) == str(errors[1])
    assert f"rank 1 on host {socket.gethostname()} cannot connect to rank 0" in str(errors[0])

    def begin(ranks):
        with watch.watched(ranks, None, timeout_seconds=5.0):
            pass

    for error in run_ranks(2, begin):
        assert isinstance(error, UserError)
        assert "--rank_timeout=0" in str(error)


def test_ranks_of_one_host_are_reached_by_its_loopback_alone():
    def look_around(offer):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", offer.port), LIMIT)

    peers = connect_after(look_around, 2)
    assert_connected(peers, 2)
    close(peers)


def test_ranks_of_other_hosts_try_the_addresses_of_rank_0(monkeypatch):
    """Only names tell the hosts apart; another loopback address stands in for a network.

    Something else has the first address, as a bridge that other hosts have as well.
    """
    tried, create_connection = [], socket.create_connection

    def connect(address, timeout):
        tried.append(address[0])
        if address[0] == "127.0.1.1":
            raise ConnectionRefusedError
        return create_connection(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect)

    class Elsewhere(ThreadRank):
        def gather(self, value):
            if isinstance(value, Place):
                host = ("first", "second")[self.rank]
                value = Place(host, host, ("127.0.1.1", "127.0.0.2"))
            return super().gather(value)

    peers = run_ranks(2, lambda rank: connect_ranks(Elsewhere(rank.rank, rank.board)))
    assert tried == ["127.0.1.1", "127.0.0.2"]
    assert peers[0].hosts == peers[1].hosts == {0: "first", 1: "second"}
    close(peers)


def test_own_addresses_are_those_of_networks():
    place = local_place()
    assert place.host == socket.gethostname()
    assert not [address for address in place.addresses if address.startswith("127.")]
