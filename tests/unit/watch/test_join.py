"""How ranks find each other, on real sockets, among connections that are none of theirs."""

import contextlib
import errno
import functools
import os
import socket
import threading
import types

import pytest

from bert_tf.util.errors import UserError
from bert_tf.watch import join, watch
from bert_tf.watch.join import (
    CannotConnectError,
    Limits,
    Offer,
    Place,
    connect_ranks,
    join_rank_0,
    listening_addresses,
)
from tests.helpers.thread_ranks import LIMIT, ThreadRank, run_ranks

ANSWER_BYTES = 32 + 4 + 32  # a nonce, a rank, a proof
DEFAULT_LIMITS = Limits()
HERE = Place("here", "network", ())


def connect(offer):
    """A connection to rank 0 by somebody."""
    return socket.create_connection(offer.listens_at[0], LIMIT)


def receive(connection, count):
    """``count`` bytes, or what there is before the other end closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while len(received) < count and (part := connection.recv(count - len(received))):
            received += part
    return received


def is_dismissed(connection):
    """Waits until rank 0 has closed a connection, whatever it said before."""
    return len(receive(connection, 1000)) <= 32


def close(links):
    for own in links:
        for link in own:
            link.close()


def connect_after(action, size, limits=DEFAULT_LIMITS):
    """The links of ``size`` ranks, where an action comes before ranks other than 0 join.

    That is ``action(offer)``, on rank 1 alone; what it returns takes the offer's place, if anything
    does. Those that come after rank 1 wait until it is done.
    """
    done = threading.Event()

    class Waiting(ThreadRank):
        def broadcast(self, value):
            offer = super().broadcast(value)
            if self.rank == 1:
                try:
                    offer = action(offer) or offer
                finally:
                    done.set()
            elif self.rank > 1:
                assert done.wait(LIMIT)
            return offer

    return run_ranks(size, lambda rank: connect_ranks(Waiting(rank.rank, rank.board), limits))


def assert_connected(links, size):
    """Every rank has the connections it should have, and what one end sends the other receives."""
    assert not [own for own in links if isinstance(own, Exception)], links
    assert sorted(link.rank for link in links[0]) == list(range(1, size))
    for link in links[0]:
        (other,) = links[link.rank]
        assert (other.rank, other.host, link.host) == (0, *[socket.gethostname()] * 2)
        for sender, receiver in ((link, other), (other, link)):
            sender.send({"kind": "to", "rank": link.rank})
            assert receiver.receive() == [{"kind": "to", "rank": link.rank}]


def test_every_rank_connects_to_rank_0():
    links = run_ranks(3, connect_ranks)
    assert_connected(links, 3)
    by_rank = {link.rank: link for link in links[0]}
    by_rank[1].close()
    assert links[1][0].receive() is None
    close(links)


@pytest.mark.parametrize("sent", [
    b'{"token": "guess", "rank": 1, "host": "x"}\n' * 2,
    b"[" * 4000,
    bytes(ANSWER_BYTES),
    b"\xff" * ANSWER_BYTES,
], ids=["guess", "brackets", "zeros", "ones"])  # fmt: skip
def test_a_stranger_that_talks_is_dismissed(sent):
    strangers = []

    def talk(offer):
        with connect(offer) as stranger:
            stranger.sendall(sent)
            strangers.append(is_dismissed(stranger))

    links = connect_after(talk, 2)
    assert strangers == [True]
    assert_connected(links, 2)
    close(links)


def test_strangers_that_keep_silent_or_stop_in_the_middle_delay_nobody():
    """As many as would take far more than the whole time if they were waited for in turn."""
    with contextlib.ExitStack() as strangers:

        def come_and_stay(offer):
            for number in range(ANSWER_BYTES):
                stranger = strangers.enter_context(connect(offer))
                stranger.sendall(bytes(number))

        links = connect_after(come_and_stay, 3, Limits(to_join=20.0, for_an_address=10.0))
        assert_connected(links, 3)
        close(links)


def test_a_crowd_of_strangers_is_held_small():
    with contextlib.ExitStack() as strangers:
        dismissed = []

        def crowd(offer):
            crowd = []
            for _ in range(30):
                crowd.append(strangers.enter_context(connect(offer)))
                assert len(receive(crowd[-1], 32)) == 32
            dismissed.extend(is_dismissed(stranger) for stranger in crowd[:25])

        links = connect_after(crowd, 2, Limits(most_unproven=5))
        assert dismissed == [True] * 25
        assert_connected(links, 2)
        close(links)


class Relay:
    """Stands between rank 1 and rank 0, passes on what they send, and keeps it.

    All but the last byte, with which rank 1 says that it stays.
    """

    def __init__(self, offer):
        self.sent, self.answered = b"", b""
        self._rank_0 = connect(offer)
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self):
        rank, _ = self.server.accept()
        with rank, self._rank_0:
            self.answered += receive(self._rank_0, 32)
            rank.sendall(self.answered)
            self.sent += receive(rank, ANSWER_BYTES)
            self._rank_0.sendall(self.sent)
            self.answered += receive(self._rank_0, 32)
            rank.sendall(self.answered[32:])


def join_through_relay(offer):
    """Joins as rank 1 and leaves; returns what crossed."""
    relay = Relay(offer)
    changed = Offer(offer.secret, (relay.server.getsockname(),))
    with contextlib.closing(join_rank_0(changed, [HERE, HERE], 1)[0][0]):
        return relay


def test_a_rank_that_leaves_and_connects_again_is_counted_once():
    """Though it was known before it left; nobody else comes in between, so rank 0 must wait."""

    def join_and_leave(offer):
        for _ in range(2):
            join_through_relay(offer)

    links = connect_after(join_and_leave, 2)
    assert_connected(links, 2)
    close(links)


def test_the_secret_never_crosses_and_what_crosses_opens_nothing():
    """Who has heard rank 1 join cannot join as rank 1, nor be rank 0 to another rank."""
    offers = []

    def overhear(offer):
        relay = join_through_relay(offer)
        offers.append(offer)
        assert len(relay.sent) == ANSWER_BYTES
        assert len(relay.answered) == 64
        assert offer.secret not in relay.sent + relay.answered
        with connect(offer) as replay:
            assert len(receive(replay, 32)) == 32
            replay.sendall(relay.sent)
            assert receive(replay, 1) == b""

    links = connect_after(overhear, 3)
    assert len(offers[0].secret) == 32
    assert_connected(links, 3)
    close(links)


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
    lambda connection: connection.sendall(receive(connection, ANSWER_BYTES)),
    lambda connection: connection.recv(1),  # silent until it is left
], ids=["guesses", "echoes", "keeps silent"])  # fmt: skip
def test_what_is_not_rank_0_is_not_joined(answer):
    with served_by(answer) as server:
        offer = Offer(bytes(32), (server.getsockname(),))
        joined, problem = join_rank_0(offer, [HERE, HERE], 1, Limits(to_join=0.5))
    assert joined == {}
    assert problem == f"127.0.0.1 port {offer.listens_at[0][1]}"


def test_rank_0_is_found_behind_what_keeps_silent():
    """In the time of one address, and when what is there comes first in every round."""
    with served_by(lambda connection: connection.recv(1)) as silent:

        def after_it(offer):
            return Offer(offer.secret, (silent.getsockname(), *offer.listens_at))

        links = connect_after(after_it, 2, Limits(for_an_address=0.2))
    assert_connected(links, 2)
    close(links)


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
    links = run_ranks(2, lambda ranks: connect_ranks(ranks, limits))
    assert_connected(links, 2)
    assert not list(failures)
    close(links)


def test_a_byte_now_and_then_gains_no_time(monkeypatch):
    now = [0.0]

    class Dripping:
        """Gives a byte just before the time that it is waited for is over."""

        given = 0

        def settimeout(self, seconds):
            self.wait = min(seconds, 2.0)

        def recv(self, count):
            now[0] += self.wait
            self.given += 1
            return b"x"

    monkeypatch.setattr(join.time, "monotonic", lambda: now[0])
    dripping = Dripping()
    with pytest.raises(socket.timeout):
        join.receive(dripping, 32, 5.0)
    assert now == [5.0]
    assert dripping.given == 3


def test_a_rank_that_cannot_connect_is_named_on_every_rank(monkeypatch):
    monkeypatch.setattr(join, "listening_addresses", lambda places: [])
    connect = functools.partial(connect_ranks, limits=Limits(to_join=0.3))
    monkeypatch.setattr(watch, "connect_ranks", connect)
    errors = run_ranks(2, connect)
    assert all(isinstance(error, CannotConnectError) for error in errors)
    assert str(errors[0]) == str(errors[1])
    assert f"rank 1 on host {socket.gethostname()} cannot connect to rank 0" in str(errors[0])

    settings = types.SimpleNamespace(output_dir="out")

    def begin(ranks):
        with watch.watched(ranks, settings, timeout_seconds=5.0):
            pass

    for error in run_ranks(2, begin):
        assert isinstance(error, UserError)
        assert "--rank_timeout=0" in str(error)


def test_ranks_of_one_host_are_reached_by_its_loopback_alone():
    def look_around(offer):
        ((address, port),) = offer.listens_at
        assert address == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), LIMIT)

    links = connect_after(look_around, 2)
    assert_connected(links, 2)
    close(links)


BRIDGE = "172.17.0.1"  # the same one on each host
FIRST = Place("a", "1", ("10.0.0.1", BRIDGE))
SECOND = Place("b", "2", ("10.0.0.2", "10.9.0.2", BRIDGE))
SOURCES = {"10.0.0.2": "10.0.0.1", "10.9.0.2": None, BRIDGE: BRIDGE}


@pytest.mark.parametrize(("places", "expected"), [
    ([FIRST, FIRST], ["127.0.0.1"]),
    ([FIRST, SECOND], ["10.0.0.1"]),
    ([FIRST, SECOND, FIRST, SECOND], ["127.0.0.1", "10.0.0.1"]),
    # Copies of a running machine.
    ([FIRST, Place("c", "1", ("10.0.0.2",))], ["10.0.0.1"]),
])  # fmt: skip
def test_rank_0_listens_where_others_come_from(places, expected):
    assert listening_addresses(places, SOURCES.get) == expected


def test_ranks_of_other_hosts_connect_to_another_address(monkeypatch):
    """The hosts are told apart by name only; 127.0.0.2 stands for a network between them."""
    monkeypatch.setattr(join, "listening_addresses", lambda places: ["127.0.0.1", "127.0.0.2"])

    class Elsewhere(ThreadRank):
        def gather(self, value):
            if isinstance(value, Place):
                value = Place(*[("first", "second")[self.rank]] * 2, ("127.0.0.3",))
            return super().gather(value)

    links = run_ranks(2, lambda rank: connect_ranks(Elsewhere(rank.rank, rank.board)))
    with socket.socket(fileno=os.dup(links[1][0].fileno())) as connection:
        assert connection.getpeername()[0] == "127.0.0.2"
    assert {links[0][0].host, links[1][0].host} == {"first", "second"}
    close(links)


def test_the_own_address_towards_another_one():
    assert join.source_towards("127.0.0.1") == "127.0.0.1"


def test_own_addresses_are_those_of_networks():
    assert not [address for address in join.local_addresses() if address.startswith("127.")]
