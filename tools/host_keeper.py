"""A process that keeps one host of :mod:`tools.hosts` alive, and the way to enter that host.

It runs as a script in its own namespaces and needs only the standard library:

    python tools/host_keeper.py keep NAME HOSTS_FILE [PATH DIRECTORY] ...
    python tools/host_keeper.py enter HOST=PID ... [ssh's options] HOST COMMAND ...

``keep`` runs until its standard input ends, which happens however its owner ends. Then it kills
every process on its host; the kernel removes the host along with the last process. Open MPI uses
``enter`` in place of ssh.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

NAMESPACES = ("--net", "--uts", "--mount")
# Processes on one host share memory through files here; those on different hosts must not.
SHARED_MEMORY = "/dev/shm"


def network_of(pid: int) -> int:
    """The id of a process's network namespace; raises OSError if the process has ended."""
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def processes_in(network: int) -> Iterator[int]:
    """The processes in a network namespace, except zombies."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if network_of(int(entry)) == network:
                yield int(entry)


def end_processes(network: int, *, keeper: int) -> None:
    """Kills all processes in a network namespace except its keeper, as a power cut would.

    Waits until they are gone, since a process may start another one before it is killed.
    """
    while others := [pid for pid in processes_in(network) if pid != keeper]:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def enter_command(keeper: int, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` in a keeper's namespaces, replacing the process."""
    return ["nsenter", f"--target={keeper}", *NAMESPACES, *command]


def keep(name: str, hosts_file: str, *mounts: str) -> None:
    """Names this host, mounts its private files, prints "ready" and waits until its input ends.

    Args:
      name: the host name.
      hosts_file: the host's /etc/hosts.
      mounts: alternating paths and the directories that the host sees there.
    """
    socket.sethostname(name)
    pairs = iter(("/etc/hosts", hosts_file, *mounts))
    for path, source in zip(pairs, pairs):
        subprocess.run(["mount", "--bind", source, path], check=True)
    subprocess.run(["mount", "-t", "tmpfs", name, SHARED_MEMORY], check=True)
    print("ready", flush=True)
    sys.stdin.read()
    end_processes(network_of(os.getpid()), keeper=os.getpid())


def enter(*arguments: str) -> None:
    """Becomes ``COMMAND`` on ``HOST``, with its cores and, as in ssh, a bare environment."""
    keepers: dict[str, int] = {}
    rest = list(arguments)
    while "=" in rest[0]:
        name, _, pid = rest.pop(0).partition("=")
        keepers[name] = int(pid)
    while rest[0].startswith("-"):  # the ssh options that Open MPI passes have no values
        rest.pop(0)
    host, *command = rest
    os.sched_setaffinity(0, os.sched_getaffinity(keepers[host]))
    whole = enter_command(keepers[host], ["bash", "-c", " ".join(command)])
    bare = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    os.execvpe(whole[0], whole, {"PATH": f"{os.defpath}:/usr/sbin:/sbin", **bare})


if __name__ == "__main__":
    {"keep": keep, "enter": enter}[sys.argv[1]](*sys.argv[2:])
