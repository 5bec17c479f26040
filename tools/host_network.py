"""Creates, throttles, cuts and removes hosts in network namespaces joined by a switch.

The switch is another namespace, which contains a bridge. The machine's own network is therefore
left alone, and any number of such networks can coexist with the same names and addresses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bert_tf.util.errors import UserError
from tools.host_keeper import (
    NAMESPACES,
    SHARED_MEMORY,
    end_processes,
    enter_command,
    network_of,
)

KEEPER = Path(__file__).with_name("host_keeper.py")
SWITCH = "switch"
# The name of a host's link on the host; on the switch, the link has the host's name.
DEVICE = "eth0"
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
MIN_BURST_BYTES = 128 * 1024
MAX_QUEUE_SECONDS = 0.05


class Network:
    """The network of hosts, on which :class:`tools.hosts.Hosts` runs programs."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        cores: Mapping[str, Sequence[int]],
        private: Mapping[str, Mapping[Path, Path]],
    ) -> None:
        """Describes the network, which :meth:`make` creates.

        Args:
          addresses: host name -> IPv4 address.
          cores: host name -> its cores.
          private: host name -> {path: the directory that the host sees there}.
        """
        self._addresses, self._cores, self._private = addresses, cores, private
        self._keepers: dict[str, subprocess.Popen] = {}

    def make(self) -> None:
        """Creates hosts, switch and links; raises UserError if a step fails."""
        with tempfile.TemporaryDirectory() as directory:
            hosts_file = Path(directory) / "hosts"
            lines = {"localhost": "127.0.0.1", **self._addresses}
            hosts_file.write_text("".join(f"{address} {name}\n" for name, address in lines.items()))
            for name in (SWITCH, *self._addresses):
                self._keepers[name] = self._keep(name, hosts_file)
            for name, keeper in self._keepers.items():
                if keeper.stdout.readline() != "ready\n":
                    raise UserError(f"{name} could not be created; the reason is printed above.")
        self.call(SWITCH, "ip", "link", "add", "bridge", "type", "bridge")
        self.call(SWITCH, "ip", "link", "set", "bridge", "up")
        for name in self._addresses:
            self._connect(name)
            os.sched_setaffinity(self.keeper(name), self._cores[name])

    def close(self) -> None:
        """Ends every process on the hosts and removes them."""
        for keeper in self._keepers.values():
            keeper.stdin.close()
        for keeper in self._keepers.values():
            keeper.wait()
            keeper.stdout.close()
        self._keepers.clear()

    def keeper(self, name: str) -> int:
        """The process id of a host's keeper."""
        return self._keepers[name].pid

    def call(self, name: str, *command: str, check: bool = True) -> None:
        """Runs a short command on a host or the switch; raises UserError if it fails."""
        inside = enter_command(self.keeper(name), command)
        done = subprocess.run(inside, capture_output=True, text=True, check=False)
        if check and done.returncode:
            reason = done.stderr.strip().rstrip(".")
            raise UserError(f"'{' '.join(command)}' failed on {name}: {reason}")

    def shape(self, *, mbit_per_second: float | None, delay_ms: float) -> None:
        """Sets the rate of all links in both directions, and the delay of packets from hosts."""
        for name in self._addresses:
            self._shape(name, DEVICE, mbit_per_second, delay_ms)
            self._shape(SWITCH, name, mbit_per_second, 0.0)

    def set_congestion_control(self, congestion_control: str) -> None:
        """Sets TCP's congestion control on all hosts; raises UserError if it is unknown."""
        write = f'echo "$1" > {CONGESTION_CONTROL}'
        try:
            for name in self._addresses:
                self.call(name, "sh", "-c", write, "sh", congestion_control)
        except UserError as error:
            raise UserError(
                f"this kernel has no congestion control {congestion_control!r}; give 'reno', "
                "which every kernel has."
            ) from error

    def set_link(self, name: str, state: str) -> None:
        """Sets the switch's end of a host's link ``up`` or ``down``."""
        self.call(SWITCH, "ip", "link", "set", name, state)

    def end_programs(self, names: Iterable[str]) -> None:
        """Kills every process on some hosts, but keeps the hosts."""
        for name in names:
            keeper = self.keeper(name)
            end_processes(network_of(keeper), keeper=keeper)

    def _keep(self, name: str, hosts_file: Path) -> subprocess.Popen:
        mounts = [str(part) for mount in self._private.get(name, {}).items() for part in mount]
        keep = [sys.executable, str(KEEPER), "keep", name, str(hosts_file), *mounts]
        return subprocess.Popen(
            ["unshare", *NAMESPACES, *keep],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C should reach only the owner, which ends its keepers
        )

    def _connect(self, name: str) -> None:
        end = ["type", "veth", "peer", "name", DEVICE, "netns", str(self.keeper(name))]
        self.call(SWITCH, "ip", "link", "add", name, *end)
        self.call(SWITCH, "ip", "link", "set", name, "master", "bridge", "up")
        self.call(name, "ip", "address", "add", f"{self._addresses[name]}/24", "dev", DEVICE)
        self.call(name, "ip", "link", "set", DEVICE, "up")
        self.call(name, "ip", "link", "set", "lo", "up")

    def _shape(self, where: str, device: str, mbit: float | None, delay_ms: float) -> None:
        self.call(where, "tc", "qdisc", "delete", "dev", device, "root", check=False)
        parent = ["root"]
        if delay_ms:
            delay = ["netem", "delay", f"{delay_ms}ms", "limit", "10000"]
            root = ["root", "handle", "1:"]
            try:
                self.call(where, "tc", "qdisc", "add", "dev", device, *root, *delay)
            except UserError as error:
                raise UserError(
                    f"a delay of {delay_ms} ms needs netem, which this kernel lacks "
                    f"({error}); leave the delay out."
                ) from error
            parent = ["parent", "1:1"]
        if mbit is not None:
            bucket = token_bucket(mbit)
            self.call(where, "tc", "qdisc", "add", "dev", device, *parent, *bucket)


def token_bucket(mbit_per_second: float) -> list[str]:
    """The arguments for tc that throttle a device.

    Bursts are limited to one millisecond at the rate, but to no less than two of the 64 KiB packets
    that TCP passes to a device; the queue holds 50 ms at the rate.
    """
    bytes_per_second = mbit_per_second * 1e6 / 8
    burst = max(MIN_BURST_BYTES, round(bytes_per_second * 1e-3))
    limit = burst + round(bytes_per_second * MAX_QUEUE_SECONDS)
    return ["tbf", "rate", f"{mbit_per_second}mbit", "burst", str(burst), "limit", str(limit)]


def trial_error() -> str | None:
    """Tries to create a namespace with everything a network needs; returns the error, or None."""
    trial = (
        f"mount --bind /etc/hosts /etc/hosts && mount -t tmpfs trial {SHARED_MEMORY}"
        " && ip link add bridge type bridge && ip link add one type veth peer name other"
        f" && tc qdisc add dev one root {' '.join(token_bucket(1.0))}"
    )
    done = subprocess.run(
        ["unshare", *NAMESPACES, "sh", "-c", trial], capture_output=True, text=True, check=False
    )
    if not done.returncode:
        return None
    return (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]


def divide_cores(count: int, cores_per_host: int | None) -> list[list[int]]:
    """The cores of each host, assigned in turn from this process's; None divides them evenly."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // count) if cores_per_host is None else cores_per_host
    if not 1 <= share <= len(cores):
        raise UserError(
            f"{share} cores per host: choose a number from 1 to {len(cores)}, the cores here."
        )
    starts = range(0, count * share, share)
    return [sorted(cores[i % len(cores)] for i in range(s, s + share)) for s in starts]


def directories_of_hosts(
    private: Mapping[str | Path, Sequence[str | Path]], count: int
) -> list[dict[Path, Path]]:
    """For each host, {path: the directory that it sees there}, both absolute."""
    for path, directories in private.items():
        if len(directories) != count:
            raise UserError(
                f"{path}: {count} hosts need one directory each, not {len(directories)}."
            )
        for directory in (path, *directories):
            if not Path(directory).is_dir():
                raise UserError(f"{directory} is not a directory; create it first.")
    return [
        {
            Path(path).resolve(): Path(directories[i]).resolve()
            for path, directories in private.items()
        }
        for i in range(count)
    ]
