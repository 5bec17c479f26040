"""Hosts are apart, slow on demand, and gone afterwards."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, environment
from tools.host_keeper import network_of, processes_in
from tools.host_network import CONGESTION_CONTROL
from tools.hosts import Hosts

pytestmark = pytest.mark.parallel

TRANSFER = "tests/hosts/transfer_program.py"
TELL_NETWORK = "stat -L -c %i /proc/self/ns/net"
# Says which network it is in and stays.
STAY = ["sh", "-c", f"{TELL_NETWORK}; exec sleep 100000"]


@contextlib.contextmanager
def answering(hosts):
    """The second host answers what the first one sends."""
    program = [sys.executable, TRANSFER, "listen"]
    with hosts.start(program, ranks_per_host=[0, 1], stdout=subprocess.PIPE) as listener:
        assert listener.stdout.readline() == "listening\n"
        yield
        listener.kill()


@pytest.fixture(scope="module")
def pair():
    with Hosts(2) as hosts, answering(hosts):
        yield hosts


def send(hosts, target, count=1):
    """What the sender on the first host prints: a duration in seconds or "no way"."""
    program = [sys.executable, TRANSFER, "send", target, str(count)]
    return hosts.run(program, ranks_per_host=[1, 0]).stdout.strip()


def test_a_rate_is_held(pair):
    seconds, count = {}, 1_000_000
    for rate in (80, 8):
        pair.set_rate(rate)
        seconds[rate] = float(send(pair, "host1", count))
        # 128 KiB may pass at once at each end of each link.
        assert seconds[rate] > (count - 4 * 128 * 1024) * 8 / (rate * 1e6)
    assert seconds[8] > 3 * seconds[80], "ten times as slow, or about so"
    pair.set_rate(None)
    assert float(send(pair, "host1", count)) < seconds[8] / 3


def test_a_cut_link_carries_nothing(pair):
    assert float(send(pair, "host1")) >= 0
    pair.cut(1)
    assert send(pair, "host1") == "no way"
    pair.restore(1)
    assert float(send(pair, "host1")) >= 0


def test_a_delay_is_there_on_both_ways():
    with contextlib.ExitStack() as stack:
        try:
            slow = stack.enter_context(Hosts(2, delay_ms=20.0, mbit_per_second=100))
        except UserError as error:
            if "netem" not in str(error):
                raise
            pytest.skip(str(error))
        stack.enter_context(answering(slow))
        assert float(send(slow, "host1")) > 0.04


def test_congestion_control_is_that_of_the_hosts_alone():
    before = Path(CONGESTION_CONTROL).read_text()
    with Hosts(2, congestion_control="reno") as hosts:
        for ranks in ([1, 0], [0, 1]):
            assert hosts.run(["cat", CONGESTION_CONTROL], ranks_per_host=ranks).stdout == "reno\n"
        assert Path(CONGESTION_CONTROL).read_text() == before
    with pytest.raises(UserError, match="this kernel has no congestion control 'fast'"):
        Hosts(2, congestion_control="fast").__enter__()


def test_two_sets_of_hosts_know_nothing_of_each_other(pair):
    with Hosts(2) as others:
        assert others.addresses == pair.addresses
        assert send(others, "host1") == "no way"
        assert float(send(pair, "host1")) >= 0


@pytest.mark.exhaustive
def test_ranks_of_a_host_are_told_from_those_of_others():
    """What each rank knows of itself, with two ranks on one host and one on the other."""
    program = [sys.executable, "tests/parallel/ranks_program.py", "exchange"]
    with Hosts(2, cores_per_host=1) as hosts:
        done = hosts.run(program, ranks_per_host=[2, 1], environment=environment())
    found = json.loads(done.stdout.splitlines()[-1])
    assert [f["rank"] for f in found] == [0, 1, 2]
    assert [f["local_rank"] for f in found] == [0, 1, 0]
    assert [f["sizes"] for f in found] == [[3, 2], [3, 2], [3, 1]]
    assert [f["threads"] for f in found] == [1, 1, 1]
    for f in found:
        assert f["gathered_again"] == [0, 1, 2]
        assert f["single"] == [3, 3]


def test_host_names_addresses_and_directories(tmp_path):
    for name in ("seen", "first", "second"):
        (tmp_path / name).mkdir()
    program = (
        "import json, os, pathlib, socket, sys;"
        " name = socket.gethostname();"
        " address, cores = socket.gethostbyname(name), sorted(os.sched_getaffinity(0));"
        " pathlib.Path(sys.argv[1], name).write_text(json.dumps([address, cores]))"
    )
    seen, first, second = (tmp_path / name for name in ("seen", "first", "second"))
    with Hosts(2, private={seen: [first, second]}, cores_per_host=1) as hosts:
        hosts.run([sys.executable, "-c", program, str(seen)], ranks_per_host=[1, 1])
    assert not list(seen.iterdir())
    [of_first], [of_second] = first.iterdir(), second.iterdir()
    assert [of_first.name, of_second.name] == list(hosts.names) == ["host0", "host1"]
    found = [json.loads(path.read_text()) for path in (of_first, of_second)]
    assert [address for address, _ in found] == list(hosts.addresses)
    cores = [set(of_host) for _, of_host in found]
    assert all(len(of_host) == 1 for of_host in cores)
    assert len(set.union(*cores)) == min(2, len(os.sched_getaffinity(0))), "each has its own core"


def networks(process):
    """The networks that two ranks of :data:`STAY` are in."""
    found = [int(process.stdout.readline()) for _ in range(2)]
    assert len({*found, network_of(os.getpid())}) == 3, "two hosts, and neither is this machine"
    return found


def test_nothing_is_left_after_an_error():
    with pytest.raises(ZeroDivisionError), Hosts(2) as hosts:
        process = hosts.start(STAY, ranks_per_host=[1, 1], stdout=subprocess.PIPE)
        found = networks(process)
        1 / 0  # noqa: B018
    with process:
        assert process.wait() == -signal.SIGKILL
    assert not [pid for network in found for pid in processes_in(network)]


@pytest.mark.slow
def test_nothing_is_left_after_a_program_that_takes_too_long(tmp_path):
    # A host without a network does not hear that mpirun has ended.
    told = tmp_path / "network"
    told.touch()
    down = f"{shutil.which('ip')} link set eth0 down"
    goes_deaf = f"{TELL_NETWORK} > {told}; {down}; exec sleep 100000"
    with Hosts(2) as hosts:
        timeout = 2
        while not told.read_text():  # on a busy machine it may not even have started by then
            with pytest.raises(subprocess.TimeoutExpired):
                hosts.run(["sh", "-c", goes_deaf], ranks_per_host=[0, 1], timeout=timeout)
            timeout *= 2
        network = int(told.read_text())
        assert len(list(processes_in(network))) == 1, "what keeps the host"
        assert hosts.run(["hostname"], ranks_per_host=[1, 0]).stdout == "host0\n"


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_nothing_is_left_when_its_owner_ends(asked):
    owner = subprocess.Popen(
        [sys.executable, "-m", "tools.hosts", "--hosts=2", "--", *STAY],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, a shell may have made SIGINT one to ignore.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with owner:
        found = networks(owner)
        owner.send_signal(asked)
        stdout, stderr = owner.communicate()  # until the last that could write to it has ended
        assert stdout == ""
        assert "Traceback" not in stderr
    assert owner.returncode in (-asked, 128 + asked)
    deadline = time.monotonic() + 60
    while left := [pid for network in found for pid in processes_in(network)]:
        assert time.monotonic() < deadline, left


@pytest.mark.slow
def test_the_command_ends_as_its_program_does():
    command = [sys.executable, "-m", "tools.hosts", "--hosts=2", "--mbit=100"]
    program = ["sh", "-c", "echo $OMPI_COMM_WORLD_SIZE; exit 7"]
    done = subprocess.run(
        [*command, "--ranks_per_host=2,1", "--", *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3\n" in done.stdout
    assert done.returncode == 7


def test_a_failed_program_shows_what_it_said():
    with Hosts(1) as hosts, pytest.raises(RuntimeError, match=r"status 3(?s:.*)the reason"):
        hosts.run(["sh", "-c", "echo the reason >&2; exit 3"], ranks_per_host=[1])
