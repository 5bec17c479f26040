"""Decisions before hosts are created; tests/hosts creates them."""

import os

import pytest

from bert_tf.util.errors import UserError
from tools import hosts as module
from tools.host_network import directories_of_hosts, divide_cores, token_bucket
from tools.hosts import Hosts, find_obstacle


def test_without_root_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_obstacle() == "root is needed to create hosts in network namespaces."
    with pytest.raises(UserError, match="root is needed"):
        Hosts(2).__enter__()


@pytest.mark.parametrize(
    ("missing", "package"), [("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")]
)
def test_a_missing_program_is_named_with_its_package(missing, package, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module.shutil, "which", lambda name, **_: None if name == missing else name)
    assert (
        find_obstacle() == f"the program '{missing}' was not found; install the package {package}."
    )


def test_the_error_of_a_trial_is_quoted(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module.shutil, "which", lambda name, **_: name)
    monkeypatch.setattr(module, "trial_error", lambda: "unshare failed: not permitted")
    assert find_obstacle() == (
        "network namespaces cannot be used here, even by root (unshare failed: not permitted)."
    )
    monkeypatch.setattr(module, "trial_error", lambda: None)
    assert find_obstacle() is None


def test_names_and_addresses():
    hosts = Hosts(3)
    assert hosts.names == ("host0", "host1", "host2")
    assert len(set(hosts.addresses)) == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"count": 0}, "0 hosts"),
        ({"count": 101}, "101 hosts"),
        ({"mbit_per_second": 0}, "a rate of 0 Mbit/s"),
        ({"mbit_per_second": float("nan")}, "a rate of nan"),
        ({"delay_ms": -1}, "a delay of -1 ms"),
        ({"cores_per_host": 0}, "0 cores per host"),
        ({"cores_per_host": 10**6}, "1000000 cores per host"),
        ({"private": {"/": ["/"]}}, "/: 2 hosts need one directory each, not 1"),
        ({"private": {"/nowhere": ["/", "/"]}}, "/nowhere is not a directory"),
        ({"private": {"/": ["/", "/nowhere"]}}, "/nowhere is not a directory"),
    ],
)
def test_invalid_settings_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Hosts(**{"count": 2, **settings})


@pytest.mark.parametrize("ranks", [[1], [1, 1, 1], [2, -1], [0, 0]])
def test_ranks_that_do_not_fit_the_hosts_are_refused(ranks, monkeypatch):
    hosts = Hosts(2)
    monkeypatch.setattr(hosts._network, "keeper", lambda name: 1)
    with pytest.raises(UserError, match=r"ranks on 2 hosts|no host has a rank"):
        hosts.command(["true"], ranks_per_host=ranks)


@pytest.mark.parametrize(
    ("count", "cores_per_host", "expected"),
    [
        (1, None, [[3, 4, 5, 8]]),
        (2, None, [[3, 4], [5, 8]]),
        (2, 1, [[3], [4]]),
        (3, None, [[3], [4], [5]]),
        (3, 2, [[3, 4], [5, 8], [3, 4]]),  # too few: the third shares
        (5, None, [[3], [4], [5], [8], [3]]),
    ],
)
def test_cores_are_divided(count, cores_per_host, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {8, 3, 5, 4})
    assert divide_cores(count, cores_per_host) == expected


def test_directories_of_hosts_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "first", "second"):
        (tmp_path / name).mkdir()
    assert directories_of_hosts({"data": ["first", "second"]}, 2) == [
        {tmp_path / "data": tmp_path / "first"},
        {tmp_path / "data": tmp_path / "second"},
    ]


def test_a_slow_rate_still_passes_a_packet():
    slow = dict(zip(token_bucket(1)[1::2], token_bucket(1)[2::2]))
    fast = dict(zip(token_bucket(10_000)[1::2], token_bucket(10_000)[2::2]))
    assert slow["rate"] == "1mbit"
    assert int(slow["burst"]) == 2 * 64 * 1024
    assert int(fast["burst"]) == 10_000e6 / 8 / 1000, "what passes in a millisecond"
    for arguments in (slow, fast):
        assert int(arguments["limit"]) > int(arguments["burst"])
