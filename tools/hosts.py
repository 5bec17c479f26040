"""Emulates several hosts on one machine: network namespaces joined by a switch.

Each host has its own network, host name, /etc/hosts, cores and, if requested, directories; all
other files and the memory are shared. Its link to the switch can be throttled, delayed and cut.
Programs run across the hosts with the real mpirun, which enters another host where it would use
ssh. This needs root, and the programs of iproute2 and util-linux:

    python -m tools.hosts --hosts=2 --mbit=1000 -- python run_pretraining.py --horovod ...

Nothing outlives the owning process, even if it is killed: a host exists as long as its keeper
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

from bert_tf.util.environment import available_cores
from bert_tf.util.errors import UserError, exit_on_user_error
from tools.host_keeper import SHARED_MEMORY, enter_command, network_of, processes_in
from tools.host_network import (
    KEEPER,
    Network,
    directories_of_hosts,
    divide_cores,
    trial_error,
)

ROOT = Path(__file__).resolve().parent.parent
MAX_HOSTS = 100
# Environment variables that mpirun forwards to other hosts, in addition to the caller's.
FORWARDED = ("PATH", "VIRTUAL_ENV", "PYTHONPATH")


class Hosts:
    """Emulated hosts that exist inside a ``with`` block.

    Attributes:
      names: their host names; mpirun runs on the first one, ``host0``.
      addresses: their IPv4 addresses, to which every host resolves the names.
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
        """Describes the hosts, which ``with`` creates; raises UserError for invalid arguments.

        Args:
          count: number of hosts.
          mbit_per_second: rate of each host's link in each direction, in 10^6 bits; None does not
            throttle.
          delay_ms: delay of each packet that leaves a host, in milliseconds; a round trip takes
            twice that. Needs a kernel with netem.
          congestion_control: TCP's congestion control, for instance ``reno``; None for the
            machine's default.
          cores_per_host: number of this process's cores per host. None divides them evenly; if
            there are too few, hosts share cores.
          private: path of an existing directory -> the directories that the hosts see there
            instead, one for each host.
        """
        if not 1 <= count <= MAX_HOSTS:
            raise UserError(f"{count} hosts: choose a number from 1 to {MAX_HOSTS}.")
        if not delay_ms >= 0:
            raise UserError(f"a delay of {delay_ms} ms is invalid; give 0 or more.")
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
        """Creates the hosts; raises UserError if that is not possible here."""
        reason = find_obstacle()
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
        """The command that runs ``program`` with the given ranks per host, in the project's root.

        ``environment`` is added to this process's, and forwarded to every rank.
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
        """Starts :meth:`command`; the returned process becomes mpirun itself."""
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
        """Runs :meth:`command` and returns its output.

        Raises RuntimeError with the output if it fails and ``check`` is set, and
        subprocess.TimeoutExpired after ``timeout`` seconds, killing every process on the hosts.
        """
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(
            program, ranks_per_host=ranks_per_host, environment=environment, **pipes
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                self._network.end_programs(self.names)
                raise
        if check and process.returncode:
            failed = f"{' '.join(program)} on {len(self.names)} hosts: status {process.returncode}"
            raise RuntimeError(f"{failed}\n{stdout}\n{stderr}")
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def set_rate(self, mbit_per_second: float | None) -> None:
        """Throttles all links to another rate, immediately; None removes the limit."""
        rate = _checked_rate(mbit_per_second)
        self._network.shape(mbit_per_second=rate, delay_ms=self._delay_ms)

    def cut(self, host: int) -> None:
        """Unplugs a host: no packets pass, but no connection is closed."""
        self._network.set_link(self.names[host], "down")

    def processes(self, host: int) -> list[int]:
        """The ids of the processes on a host, except its keeper."""
        keeper = self._network.keeper(self.names[host])
        return [pid for pid in processes_in(network_of(keeper)) if pid != keeper]

    def kill(self, host: int) -> None:
        """Kills every process on a host, as a power cut would; the host can be used again."""
        self._network.end_programs([self.names[host]])

    def restore(self, host: int) -> None:
        """Plugs a host in again."""
        self._network.set_link(self.names[host], "up")

    def _mpirun(self, ranks_per_host: Sequence[int], forwarded: Sequence[str]) -> list[str]:
        if len(ranks_per_host) != len(self.names) or min(ranks_per_host) < 0:
            raise UserError(
                f"{list(ranks_per_host)} ranks on {len(self.names)} hosts: give one number, 0 or "
                "more, for each host."
            )
        total = sum(ranks_per_host)
        if not total:
            raise UserError("no host has a rank; give at least one host a rank.")
        slots = [f"{name}:{ranks}" for name, ranks in zip(self.names, ranks_per_host) if ranks]
        mpirun = shutil.which("mpirun", path=_path())
        command = [mpirun, "--allow-run-as-root", "--prefix", str(Path(mpirun).parents[1])]
        # With binding, the first rank of every host would be bound to the first core only.
        command += ["-np", str(total), "-H", ",".join(slots), "--bind-to", "none"]
        command += ["--mca", "plm_rsh_agent", self._agent()]
        command += ["--mca", "orte_tmpdir_base", SHARED_MEMORY]  # removed with the host
        if total > available_cores():
            # Waiting ranks must yield their core; mpirun considers each host separately.
            command += ["--mca", "mpi_yield_when_idle", "1"]
        return [*command, *(part for name in forwarded for part in ("-x", name))]

    def _agent(self) -> str:
        keepers = [f"{name}={self._network.keeper(name)}" for name in self.names]
        return " ".join([sys.executable, str(KEEPER), "enter", *keepers])


def find_obstacle() -> str | None:
    """Tries a namespace; a sentence about why hosts cannot be created here, None if they can."""
    if not sys.platform.startswith("linux"):
        return "hosts need Linux's network namespaces, and this is another system."
    if os.geteuid():
        return "root is needed to create hosts in network namespaces."
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"the program '{program}' was not found; install the package {package}."
    if shutil.which("mpirun", path=_path()) is None:
        return "mpirun was not found; run 'make setup' without HOROVOD=0."
    reason = trial_error()
    return reason and f"network namespaces cannot be used here, even by root ({reason})."


def _checked_rate(mbit_per_second: float | None) -> float | None:
    if mbit_per_second is not None and not mbit_per_second > 0:
        raise UserError(f"a rate of {mbit_per_second} Mbit/s is invalid; give more than 0.")
    return mbit_per_second


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hosts",
        description="Run a program over several hosts emulated on this machine.",
    )
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (2)")
    parser.add_argument("--mbit", type=float, help="rate of each link in 10^6 bits per second")
    parser.add_argument("--delay_ms", type=float, default=0.0, help="delay of each packet in ms")
    parser.add_argument(
        "--ranks_per_host", type=_numbers, default=[1], help="one number, or one per host: 2,1 (1)"
    )
    parser.add_argument("--cores_per_host", type=int, help="cores of each host (an equal share)")
    parser.add_argument(
        "--private",
        action="append",
        nargs="+",
        default=[],
        metavar=("PATH", "DIRECTORY"),
        help="a path, and for each host the directory that it sees there; may be repeated",
    )
    parser.add_argument("program", nargs="+", help="after --: the program for mpirun")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the given program; returns mpirun's exit status."""
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
