"""Hosts on one machine: network namespaces joined by a switch, with links as slow as one likes.

Each host has a network, a host name, an /etc/hosts and, where one asks for them, directories of its
own; processes and all other files are the machine's. Its links to the switch can be throttled,
delayed and cut. Programs are started over the hosts by the real mpirun, which enters another host
where it would call ssh. Root is needed, and the programs of iproute2 and util-linux:

    python -m tools.hosts --hosts=2 --mbit=1000 -- python run_pretraining.py --horovod ...

Nothing outlives its owner, not even when that is killed: a host exists as long as its keeper
(:mod:`tools.host_keeper`), and keepers end with their owner. Since all of a host is in namespaces
of its own, any number of :class:`Hosts` live side by side with the same names and addresses.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bert_tf.environment import available_cores
from bert_tf.errors import UserError, exit_on_user_error
from tools.host_keeper import NAMESPACES, end_processes, enter_command, network_of

ROOT = Path(__file__).resolve().parent.parent
KEEPER = Path(__file__).with_name("host_keeper.py")
MOST_HOSTS = 100
# The link of a host is called so on the host; on the switch it has the host's name.
DEVICE = "eth0"
LEAST_BURST_BYTES = 128 * 1024
QUEUE_SECONDS = 0.05
# What mpirun hands to the ranks on other hosts, beside what a caller names.
FORWARDED = ("PATH", "VIRTUAL_ENV", "PYTHONPATH")


class Hosts:
    """So many hosts, from the start of the ``with`` block to its end.

    Attributes:
      names: their host names, ``host0`` first, on which mpirun runs.
      addresses: their IPv4 addresses; every host finds them by name too.
    """

    def __init__(
        self,
        count: int,
        *,
        mbit_per_second: float | None = None,
        delay_ms: float = 0.0,
        cores_per_host: int | None = None,
        private: Mapping[str | Path, Sequence[str | Path]] | None = None,
    ) -> None:
        """Says what hosts there will be; ``with`` makes them. Raises UserError for what cannot be.

        Args:
          count: number of hosts.
          mbit_per_second: rate of each host's link in each direction, in 10^6 bits; None does not
            throttle.
          delay_ms: time that each packet takes longer to leave its host, in milliseconds; there
            and back is twice that. Needs a kernel with netem.
          cores_per_host: how many of this process's cores each host has. None divides them; where
            there are too few, hosts share.
          private: directories that each host has a copy of its own of: what host number i finds at
            the path, an existing directory, is the content of the i-th directory.
        """
        if not 1 <= count <= MOST_HOSTS:
            raise UserError(f"{count} hosts: choose a number from 1 to {MOST_HOSTS}.")
        if cores_per_host is not None and not 1 <= cores_per_host <= available_cores():
            raise UserError(
                f"{cores_per_host} cores per host: choose a number from 1 to {available_cores()}, "
                "the cores of this machine."
            )
        self.names = tuple(f"host{i}" for i in range(count))
        self.addresses = tuple(f"10.77.0.{i + 1}" for i in range(count))
        self._rate, self._delay_ms = _checked_rate(mbit_per_second), _checked_delay(delay_ms)
        self._cores = cores_per_host or max(1, available_cores() // count)
        self._private = _checked_directories(private or {}, count)
        self._keepers: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> Hosts:
        """Makes the hosts; raises UserError when that is not possible here."""
        reason = why_not()
        if reason:
            raise UserError(reason)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process on the hosts and removes them."""
        for keeper in self._keepers.values():
            keeper.stdin.close()
        for keeper in self._keepers.values():
            keeper.wait()
            keeper.stdout.close()
        self._keepers.clear()

    def command(
        self,
        program: Sequence[str],
        *,
        ranks_per_host: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command that runs ``program`` on so many ranks of each host, from the project's root.

        ``environment`` is added to this process's, and handed to every rank.
        """
        if len(ranks_per_host) != len(self.names) or min(ranks_per_host) < 0:
            raise UserError(
                f"{len(self.names)} hosts need as many numbers of ranks, 0 or more each, but "
                f"{list(ranks_per_host)} was given."
            )
        total = sum(ranks_per_host)
        if not total:
            raise UserError("no host has a rank; give at least one host one.")
        launcher = _find_mpirun()
        added = {"PATH": _path(), "VIRTUAL_ENV": sys.prefix, **(environment or {})}
        names = sorted({*added, *(name for name in FORWARDED if name in os.environ)})
        slots = [f"{n}:{ranks}" for n, ranks in zip(self.names, ranks_per_host) if ranks]
        mpirun = [launcher, "--allow-run-as-root", "--prefix", str(Path(launcher).parents[1])]
        mpirun += ["-np", str(total), "-H", ",".join(slots), "--bind-to", "none"]
        mpirun += ["--mca", "plm_rsh_agent", self._agent()]
        if total > available_cores():
            # A rank that waits for others must let them have the core; mpirun sees each host alone.
            mpirun += ["--mca", "mpi_yield_when_idle", "1"]
        for name in names:
            mpirun += ["-x", name]
        inside = ["env", f"--chdir={ROOT}", *(f"{k}={v}" for k, v in added.items()), *mpirun]
        first = self.names[0]
        cores = ",".join(map(str, self._cores_of(0)))
        return ["taskset", "--cpu-list", cores, *self._enter(first, [*inside, *program])]

    def start(
        self,
        program: Sequence[str],
        *,
        ranks_per_host: Sequence[int],
        environment: Mapping[str, str] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen:
        """Starts :meth:`command`; the process that is returned is mpirun itself."""
        return subprocess.Popen(
            self.command(program, ranks_per_host=ranks_per_host, environment=environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def run(
        self,
        program: Sequence[str],
        *,
        ranks_per_host: Sequence[int],
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess:
        """Runs :meth:`command` and returns what it printed.

        Raises RuntimeError, with the output, when it fails and ``check`` is set, and
        subprocess.TimeoutExpired after ``timeout`` seconds; then every process on the hosts ends.
        """
        process = self.start(
            program,
            ranks_per_host=ranks_per_host,
            environment=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                self._end_programs()
                raise
        if check and process.returncode:
            command = " ".join(process.args)
            raise RuntimeError(f"{command}: status {process.returncode}\n{stdout}\n{stderr}")
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def set_rate(self, mbit_per_second: float | None) -> None:
        """Throttles all links to another rate, at once; None lets them go."""
        self._rate = _checked_rate(mbit_per_second)
        for name in self.names:
            self._shape(name, DEVICE, delay_ms=self._delay_ms)
            self._shape("switch", name, delay_ms=0.0)

    def cut(self, host: int) -> None:
        """Pulls the cable of a host: nothing comes through and nobody is told."""
        self._ip("switch", "link", "set", self.names[host], "down")

    def restore(self, host: int) -> None:
        """Puts the cable of a host back."""
        self._ip("switch", "link", "set", self.names[host], "up")

    def _make(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            hosts_file = Path(directory) / "hosts"
            lines = [("127.0.0.1", "localhost"), *zip(self.addresses, self.names)]
            hosts_file.write_text("".join(f"{address} {name}\n" for address, name in lines))
            for name in ("switch", *self.names):
                self._keep(name, hosts_file)
            for name, keeper in self._keepers.items():
                if keeper.stdout.readline() != "ready\n":
                    raise UserError(f"{name} could not be made; the reason is printed above.")
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            os.sched_setaffinity(self._keepers[name].pid, self._cores_of(number))
            self._connect(name, self.addresses[number])
        self.set_rate(self._rate)

    def _keep(self, name: str, hosts_file: Path) -> None:
        keep = [sys.executable, str(KEEPER), "keep", name, str(hosts_file)]
        if name in self.names:
            number = self.names.index(name)
            keep += [f"{path}={directories[number]}" for path, directories in self._private.items()]
        self._keepers[name] = subprocess.Popen(
            ["unshare", *NAMESPACES, *keep],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the owner, who ends its keepers
        )

    def _connect(self, name: str, address: str) -> None:
        end = ["type", "veth", "peer", "name", DEVICE, "netns", str(self._keepers[name].pid)]
        self._ip("switch", "link", "add", name, *end)
        self._ip("switch", "link", "set", name, "master", "bridge", "up")
        self._ip(name, "address", "add", f"{address}/24", "dev", DEVICE)
        self._ip(name, "link", "set", DEVICE, "up")
        self._ip(name, "link", "set", "lo", "up")

    def _shape(self, where: str, device: str, *, delay_ms: float) -> None:
        tc = ["tc", "qdisc"]
        self._call(where, [*tc, "delete", "dev", device, "root"], check=False)
        parent = ["root"]
        if delay_ms:
            delay = ["handle", "1:", "netem", "delay", f"{delay_ms}ms", "limit", "10000"]
            self._call(where, [*tc, "add", "dev", device, "root", *delay])
            parent = ["parent", "1:"]
        if self._rate is not None:
            bytes_per_second = self._rate * 1e6 / 8
            burst = max(LEAST_BURST_BYTES, round(bytes_per_second / 1000))
            limit = burst + round(bytes_per_second * QUEUE_SECONDS)
            bucket = ["tbf", "rate", f"{self._rate}mbit", "burst", str(burst), "limit", str(limit)]
            self._call(where, [*tc, "add", "dev", device, *parent, *bucket])

    def _cores_of(self, number: int) -> list[int]:
        cores = sorted(os.sched_getaffinity(0))
        first = number * self._cores
        return sorted({cores[i % len(cores)] for i in range(first, first + self._cores)})

    def _agent(self) -> str:
        keepers = [f"{name}={self._keepers[name].pid}" for name in self.names]
        return " ".join([sys.executable, str(KEEPER), "enter", *keepers])

    def _enter(self, name: str, command: Sequence[str]) -> list[str]:
        return enter_command(self._keepers[name].pid, command)

    def _ip(self, where: str, *arguments: str) -> None:
        self._call(where, ["ip", *arguments])

    def _call(self, where: str, command: Sequence[str], *, check: bool = True) -> None:
        done = subprocess.run(
            self._enter(where, command), capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise UserError(f"{' '.join(command)} failed on {where}: {done.stderr.strip()}")

    def _end_programs(self) -> None:
        for name in self.names:
            pid = self._keepers[name].pid
            end_processes(network_of(pid), keeper=pid)


def why_not() -> str | None:
    """None where hosts can be made, else the reason in a sentence; it makes a trial one."""
    if not sys.platform.startswith("linux"):
        return "hosts are made of Linux's network namespaces; this is another system."
    if os.geteuid():
        return "root is needed to make hosts of network namespaces."
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"the program '{program}' was not found; install the package {package}."
    if shutil.which("mpirun", path=_path()) is None:
        return "mpirun was not found; run 'make setup' without HOROVOD=0."
    trial = (
        "mount --bind /etc/hosts /etc/hosts && ip link add bridge type bridge"
        " && ip link add one type veth peer name other"
        f" && tc qdisc add dev one root tbf rate 1mbit burst {LEAST_BURST_BYTES} limit 1000000"
    )
    done = subprocess.run(
        ["unshare", *NAMESPACES, "sh", "-c", trial], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0]
        return f"network namespaces cannot be used here, even by root ({reason})."
    return None


def _checked_rate(mbit_per_second: float | None) -> float | None:
    if mbit_per_second is not None and not mbit_per_second > 0:
        raise UserError(f"a rate of {mbit_per_second} Mbit/s: it must be more than 0.")
    return mbit_per_second


def _checked_delay(delay_ms: float) -> float:
    if not delay_ms >= 0:
        raise UserError(f"a delay of {delay_ms} ms: it must be 0 or more.")
    return delay_ms


def _checked_directories(
    private: Mapping[str | Path, Sequence[str | Path]], count: int
) -> dict[Path, list[Path]]:
    checked = {}
    for path, directories in private.items():
        if len(directories) != count:
            raise UserError(
                f"{path}: {count} hosts need as many directories, not {len(directories)}."
            )
        for directory in (path, *directories):
            if not Path(directory).is_dir():
                raise UserError(f"{directory} is no directory; make it first.")
        checked[Path(path).resolve()] = [Path(d).resolve() for d in directories]
    return checked


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _find_mpirun() -> str:
    found = shutil.which("mpirun", path=_path())
    if found is None:
        raise UserError("mpirun was not found; run 'make setup' without HOROVOD=0.")
    return found


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hosts",
        description="Run a program over several hosts that are made on this machine.",
    )
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts")
    parser.add_argument("--mbit", type=float, help="rate of each link, 10^6 bits per second")
    parser.add_argument("--delay_ms", type=float, default=0.0, help="delay of each packet")
    parser.add_argument(
        "--ranks_per_host", type=_numbers, default=[1], help="one number, or one a host: 2,1"
    )
    parser.add_argument("--cores_per_host", type=int, help="cores that each host has")
    parser.add_argument(
        "--private",
        action="append",
        default=[],
        metavar="PATH=DIRECTORY,...",
        help="what each host finds at PATH, a directory a host; may be repeated",
    )
    parser.add_argument("program", nargs="+", help="after --: what mpirun runs")
    return parser.parse_args(arguments)


def _run(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    ranks = options.ranks_per_host
    if len(ranks) == 1:
        ranks = ranks * options.hosts
    private = {}
    for mount in options.private:
        path, _, directories = mount.partition("=")
        private[path] = directories.split(",")
    hosts = Hosts(
        options.hosts,
        mbit_per_second=options.mbit,
        delay_ms=options.delay_ms,
        cores_per_host=options.cores_per_host,
        private=private,
    )
    with hosts, hosts.start(options.program, ranks_per_host=ranks) as process:
        return process.wait()


if __name__ == "__main__":
    sys.exit(exit_on_user_error(_run, sys.argv[1:]))
