"""A process that keeps one host of :mod:`tools.hosts` alive, and the way into that host.

It runs as a script, in namespaces of its own and on the standard library alone:

    python tools/host_keeper.py keep NAME HOSTS_FILE [PATH DIRECTORY] ...
    python tools/host_keeper.py enter HOST=PID ... [ssh's options] HOST COMMAND ...

``keep`` lives until its standard input ends, which it does however its owner ends, and then ends
every process of its host; with the last one the kernel removes the host. ``enter`` is what Open MPI
takes for ssh.
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
# Processes of one host share memory through files here, those of different hosts cannot.
SHARED_MEMORY = "/dev/shm"


def network_of(pid: int) -> int:
    """The number of the network namespace that a process is in; OSError when it has ended."""
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def processes_in(network: int) -> Iterator[int]:
    """The processes in a network namespace; those that have ended and wait to be reaped are not."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if network_of(int(entry)) == network:
                yield int(entry)


def end_processes(network: int, *, keeper: int) -> None:
    """Kills all processes in a network namespace except its keeper, as a power cut would.

    Waits until they are gone: one that is being killed may still have started another.
    """
    while others := [pid for pid in processes_in(network) if pid != keeper]:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def enter_command(keeper: int, command: Sequence[str]) -> list[str]:
    """``command`` in the namespaces of a keeper, as the process that starts it."""
    return ["nsenter", f"--target={keeper}", *NAMESPACES, *command]


def keep(name: str, hosts_file: str, *mounts: str) -> None:
    """Names this host, mounts what only it has, says "ready" and waits for the end of its input.

    Args:
      name: its host name.
      hosts_file: what it finds as /etc/hosts.
      mounts: in turn a path and the directory whose content the host finds there.
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
    """Becomes ``COMMAND`` on ``HOST``, with that host's cores and no more environment than ssh."""
    keepers: dict[str, int] = {}
    rest = list(arguments)
    while "=" in rest[0]:
        name, _, pid = rest.pop(0).partition("=")
        keepers[name] = int(pid)
    while rest[0].startswith("-"):  # the options of ssh that Open MPI gives have no values
        rest.pop(0)
    host, *command = rest
    os.sched_setaffinity(0, os.sched_getaffinity(keepers[host]))
    whole = enter_command(keepers[host], ["bash", "-c", " ".join(command)])
    bare = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    os.execvpe(whole[0], whole, {"PATH": f"{os.defpath}:/usr/sbin:/sbin", **bare})


if __name__ == "__main__":
    {"keep": keep, "enter": enter}[sys.argv[1]](*sys.argv[2:])
