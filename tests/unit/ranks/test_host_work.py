"""Work once on each host: who does it, what the others get, and how a mistake reaches all."""

from __future__ import annotations

import threading

import pytest

from bert_tf.ranks import host_work
from bert_tf.ranks.host_work import on_each_host, run_command
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.util.errors import UserError
from tests.helpers.thread_ranks import run_ranks

HOSTS = ["one", "one", "two", "two"]


@pytest.fixture(autouse=True)
def hosts(monkeypatch):
    """Ranks that are threads, two on each of two hosts."""
    local = threading.local()
    monkeypatch.setattr(
        host_work, "socket", type("", (), {"gethostname": lambda: getattr(local, "host", "alone")})
    )
    return local


def together(action, hosts):
    def of_rank(rank):
        hosts.host, rank.local_rank = HOSTS[rank.rank], rank.rank % 2
        return on_each_host(rank, lambda: action(HOSTS[rank.rank]))

    return run_ranks(4, of_rank)


def test_the_first_rank_of_each_host_acts_and_all_get_the_results(hosts):
    calls = []
    found = together(lambda host: calls.append(host) or f"{host}'s", hosts)
    assert sorted(calls) == ["one", "two"]
    assert found == [{"one": "one's", "two": "two's"}] * 4


def test_hosts_work_at_the_same_time(hosts):
    both = threading.Barrier(2)
    found = together(lambda host: both.wait(30), hosts)
    assert sorted(found[0].values()) == [0, 1]


def test_a_mistake_on_one_host_reaches_every_rank(hosts):
    def act(host):
        if host == "two":
            raise UserError("no such disk.")

    assert [str(error) for error in together(act, hosts)] == ["host two: no such disk."] * 4


def test_a_bug_is_raised_where_it_happened(hosts, monkeypatch):
    monkeypatch.setattr(
        "tests.helpers.thread_ranks.LIMIT", 2
    )  # the others would be ended by the watch
    found = together(lambda host: {}[host], hosts)
    assert isinstance(found[0], KeyError)
    assert isinstance(found[2], KeyError)


def test_alone():
    assert on_each_host(SingleProcess(1), lambda: 7) == {"alone": 7}

    def refuse():
        raise UserError("full.")

    with pytest.raises(UserError, match=r"^host alone: full\.$"):
        on_each_host(SingleProcess(1), refuse)


def test_the_output_of_a_command_is_shown(capfd):
    run_command("echo said; echo warned >&2; read line || echo no input", flag="before_training")
    assert capfd.readouterr() == ("said\nno input\n", "warned\n")


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("exit 3", "ended with status 3"),
        ("kill -TERM $$", "ended by signal SIGTERM"),
        ("no_such_program", "ended with status 127"),
        ("true; " * 40 + "false", r"\.\.\. ended with status 1"),
    ],
)
def test_a_command_that_fails(command, ended):
    with pytest.raises(UserError, match=rf"^--before_training={command[:9]}.*{ended}; run it"):
        run_command(command, flag="before_training")


def test_no_collective_operation_lasts_as_long_as_the_work(hosts):
    """Horovod would take the wait for a hang."""
    asked, done = [], threading.Event()

    def act(host):
        assert done.wait(30)

    def of_rank(rank):
        hosts.host, rank.local_rank = HOSTS[rank.rank], rank.rank % 2
        plain = rank.gather

        def counted(value):
            asked.append(rank.rank)
            if len(asked) > 40:
                done.set()
            return plain(value)

        rank.gather = counted
        return on_each_host(rank, lambda: act(""), first_pause=0.001)

    assert run_ranks(4, of_rank) == [{"one": None, "two": None}] * 4
    assert len(asked) > 40
