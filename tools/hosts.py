"""Hosts on one machine: network namespaces joined by a switch, with links as slow as one likes.

Each host has a network, a host name, an /etc/hosts, cores and, where one asks for them, directories
of its own; all other files and the memory are the machine's. Its link to the switch can be
throttled, delayed and cut. Programs run over the hosts by the real mpirun, which enters another
host where it would call ssh. Root is needed, and the programs of iproute2 and util-linux:

    python -m tools.hosts --hosts=2 --mbit=1000 -- python run_pretraining.py --horovod ...

Nothing outlives its owner, not even when that is killed: a host exists as long as its keeper
(:mod:`tools.host_keeper`), and keepers end with their owner.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bert_tf.environment import available_cores
from bert_tf.errors import UserError, exit_on_user_error
from tools.host_keeper import SHARED_MEMORY, enter_command
from tools.host_network import (
    KEEPER,
    Network,
    directories_of_hosts,
    divide_cores,
    failed_trial,
)

ROOT = Path(__file__).resolve().parent.parent
MOST_HOSTS = 100
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
        congestion_control: str | None = None,
        cores_per_host: int | None = None,
        private: Mapping[str | Path, Sequence[str | Path]] | None = None,
    ) -> None:
        """Says what hosts there will be; ``with`` makes them. Raises UserError for what cannot be.

        Args:
          count: number of hosts.
          mbit_per_second: rate of each host's link in each direction, in 10^6 bits; None does not
            throttle.
          delay_ms: how much later each packet leaves its host, in milliseconds; there and back is
            twice that. Needs a kernel with netem.
          congestion_control: how TCP finds out how fast it may send, ``reno`` for instance; None is
            this machine's way.
          cores_per_host: how many of this process's cores each host has. None divides them; where
            there are too few, hosts share.
          private: directories that each host has a copy of its own of: what host number i finds at
            the path, an existing directory, is the content of the i-th directory.
        """
        if not 1 <= count <= MOST_HOSTS:
            raise UserError(f"{count} hosts: choose a number from 1 to {MOST_HOSTS}.")
        if not delay_ms >= 0:
            raise UserError(f"a delay of {delay_ms} ms: it must be 0 or more.")
        self.names = tuple(f"host{i}" for i in range(count))
        self.addresses = tuple(f"10.77.0.{i + 1}" for i in range(count))
        self._rate, self._delay_ms = _checked_rate(mbit_per_second), delay_ms
        self._congestion_control = congestion_control
        self._cores = divide_cores(count, cores_per_host)
        self._network = Network(
            dict(zip(self.names, self.addresses)),
            cores=dict(zip(self.names, self._cores)),
            private=dict(zip(self.names, directories_of_hosts(private or {}, count))),
        )

    def __enter__(self) -> Hosts:
        """Makes the hosts; raises UserError when that is not possible here."""
        reason = why_not()
        if reason:
            raise UserError(reason)
        try:
            self._network.make()
            if self._congestion_control:
                self._network.set_congestion_control(self._congestion_control)
            self.set_rate(self._rate)
        except BaseException:
            self._network.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every process on the hosts and removes them."""
        self._network.close()

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
        added = {"PATH": _path(), "VIRTUAL_ENV": sys.prefix, **(environment or {})}
        forwarded = sorted({*added, *(name for name in FORWARDED if name in os.environ)})
        inside = ["env", f"--chdir={ROOT}", *(f"{name}={value}" for name, value in added.items())]
        mpirun = self._mpirun(ranks_per_host, forwarded)
        first = self._network.keeper(self.names[0])
        cores = ",".join(map(str, self._cores[0]))
        entered = enter_command(first, [*inside, *mpirun, *program])
        return ["taskset", "--cpu-list", cores, *entered]

    def start(
        self,
        program: Sequence[str],
        *,
        ranks_per_host: Sequence[int],
        environment: Mapping[str, str] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen:
        """Starts :meth:`command`; the process that is returned becomes mpirun itself."""
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
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(
            program, ranks_per_host=ranks_per_host, environment=environment, **pipes
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                self._network.end_programs()
                raise
        if check and process.returncode:
            failed = f"{' '.join(program)} on {len(self.names)} hosts: status {process.returncode}"
            raise RuntimeError(f"{failed}\n{stdout}\n{stderr}")
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def set_rate(self, mbit_per_second: float | None) -> None:
        """Throttles all links to another rate, at once; None lets them go."""
        rate = _checked_rate(mbit_per_second)
        self._network.shape(mbit_per_second=rate, delay_ms=self._delay_ms)

    def cut(self, host: int) -> None:
        """Pulls the cable of a host: nothing comes through, and no connection is closed."""
        self._network.set_link(self.names[host], "down")

    def restore(self, host: int) -> None:
        """Puts the cable of a host back."""
        self._network.set_link(self.names[host], "up")

    def _mpirun(self, ranks_per_host: Sequence[int], forwarded: Sequence[str]) -> list[str]:
        if len(ranks_per_host) != len(self.names) or min(ranks_per_host) < 0:
            raise UserError(
                f"{list(ranks_per_host)} ranks on {len(self.names)} hosts: give a number, 0 or "
                "more, for each host."
            )
        total = sum(ranks_per_host)
        if not total:
            raise UserError("no host has a rank; give at least one host one.")
        slots = [f"{name}:{ranks}" for name, ranks in zip(self.names, ranks_per_host) if ranks]
        mpirun = shutil.which("mpirun", path=_path())
        command = [mpirun, "--allow-run-as-root", "--prefix", str(Path(mpirun).parents[1])]
        # Bound, the first rank of every host would be put on that host's first core alone.
        command += ["-np", str(total), "-H", ",".join(slots), "--bind-to", "none"]
        command += ["--mca", "plm_rsh_agent", self._agent()]
        command += ["--mca", "orte_tmpdir_base", SHARED_MEMORY]  # goes with the host
        if total > available_cores():
            # A rank that waits must let others have its core; mpirun looks at each host by itself.
            command += ["--mca", "mpi_yield_when_idle", "1"]
        return [*command, *(part for name in forwarded for part in ("-x", name))]

    def _agent(self) -> str:
        keepers = [f"{name}={self._network.keeper(name)}" for name in self.names]
        return " ".join([sys.executable, str(KEEPER), "enter", *keepers])


def why_not() -> str | None:
    """None where hosts can be made, else the reason in a sentence; a trial namespace tells."""
    if not sys.platform.startswith("linux"):
        return "hosts are made of Linux's network namespaces, and this is another system."
    if os.geteuid():
        return "root is needed to make hosts of network namespaces."
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"the program '{program}' was not found; install the package {package}."
    if shutil.which("mpirun", path=_path()) is None:
        return "mpirun was not found; run 'make setup' without HOROVOD=0."
    reason = failed_trial()
    return reason and f"network namespaces cannot be used here, even by root ({reason})."


def _checked_rate(mbit_per_second: float | None) -> float | None:
    if mbit_per_second is not None and not mbit_per_second > 0:
        raise UserError(f"a rate of {mbit_per_second} Mbit/s: it must be more than 0.")
    return mbit_per_second


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hosts",
        description="Run a program over several hosts that are made on this machine.",
    )
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (2)")
    parser.add_argument("--mbit", type=float, help="rate of each link, 10^6 bits per second")
    parser.add_argument("--delay_ms", type=float, default=0.0, help="delay of each packet")
    parser.add_argument(
        "--ranks_per_host", type=_numbers, default=[1], help="one number, or one a host: 2,1 (1)"
    )
    parser.add_argument("--cores_per_host", type=int, help="cores of each host (an equal share)")
    parser.add_argument(
        "--private",
        action="append",
        nargs="+",
        default=[],
        metavar=("PATH", "DIRECTORY"),
        help="a path, and for each host the directory that it finds there; may be repeated",
    )
    parser.add_argument("program", nargs="+", help="after --: what mpirun runs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the program that the arguments name; returns the status of mpirun."""
    options = _read_arguments(arguments)
    ranks = options.ranks_per_host
    hosts = Hosts(
        options.hosts,
        mbit_per_second=options.mbit,
        delay_ms=options.delay_ms,
        cores_per_host=options.cores_per_host,
        private={path: directories for path, *directories in options.private},
    )
    ranks_per_host = ranks * options.hosts if len(ranks) == 1 else ranks
    try:
        with hosts, hosts.start(options.program, ranks_per_host=ranks_per_host) as process:
            return process.wait()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main, sys.argv[1:]))
