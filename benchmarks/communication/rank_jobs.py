"""Starts update_time: in one process, on ranks of one host, or on hosts with slow links."""

from __future__ import annotations

import dataclasses
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.communication.cases import Case
from benchmarks.script import network_from_flags
from benchmarks.speed.process import ROOT, as_flag
from bert_tf.model.config import BertConfig
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json, write_json
from tools.hosts import Hosts

LOOPBACK = "loopback"
_TIMEOUT_SECONDS = 3600
# Open MPI refuses to run as root unless told twice; namespaces need root.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank computes, and how often.

    Attributes:
      network: the network, which is written to a file for the ranks.
      flags: further flags of update_time, name to value.
    """

    network: BertConfig
    flags: Mapping[str, Any]

    @classmethod
    def from_flags(cls, default: BertConfig) -> Job:
        """The job from the flags; ``default`` is its network without --bert_config_file."""
        names = ("micro_batch_size", "seq_length", "precision", "turns", "micro_batches_a_turn")
        given = {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS}
        return cls(network_from_flags(default), {"num_threads": 1, **given})

    def with_flags(self, **changed: object) -> Job:
        """The same job with changed flags."""
        return Job(self.network, {**self.flags, **changed})

    def described(self, **more: object) -> dict[str, object]:
        """For results, which list their turns: the network, the other flags, ``more``."""
        of_flags = {name: value for name, value in self.flags.items() if name != "turns"}
        return {"network": self.network.to_dict(), **of_flags, **more}


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurements of a job.

    Attributes:
      seconds: time of one run of each case on the slowest rank, one value per turn.
      details: ``ranks``, ``hosts``, ``threads``, ``precision`` and ``gradient_bytes``.
    """

    seconds: dict[Case, list[float]]
    details: dict[str, Any]

    def median(self, case: Case) -> float:
        """Seconds of one run, as the median of the turns."""
        return statistics.median(self.seconds[case])


def run_on_one_host(
    job: Job, cases: Sequence[Case], *, ranks: int | None = None, bind_to: str = "none"
) -> Measured:
    """Measures with ``ranks`` ranks under mpirun on this machine, or without it in one process."""
    launcher = []
    if ranks is not None:
        launcher = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", bind_to]
    return _measure(job, cases, lambda program: [*launcher, *program], horovod=bool(launcher))


def run_on_hosts(
    job: Job, cases: Sequence[Case], hosts: Hosts, environment: Mapping[str, str] | None = None
) -> Measured:
    """Measures with one rank on each of the hosts, adding ``environment`` to their variables."""
    how = {"ranks_per_host": [1] * len(hosts.names), "environment": environment}
    return _measure(job, cases, lambda program: hosts.command(program, **how), horovod=True)


def run_on_link(job: Job, cases: Sequence[Case], link: str) -> Measured:
    """Measures with two ranks, on hosts with a link of this rate or on one host (``loopback``)."""
    if link == LOOPBACK:
        return run_on_one_host(job, cases, ranks=2)
    with Hosts(2, mbit_per_second=mbit_of(link)) as hosts:
        return run_on_hosts(job, cases, hosts)


def mbit_of(link: str) -> float:
    """The rate that a link's name states; raises UserError if it states none."""
    try:
        return float(link)
    except ValueError:
        raise UserError(
            f"--links: {link!r} is neither a rate in Mbit/s nor {LOOPBACK!r}; give one of these."
        ) from None


def describe_link(link: str) -> str:
    """``1 Gbit/s`` for ``1000``."""
    return "one host" if link == LOOPBACK else f"{mbit_of(link) / 1000:g} Gbit/s"


def _measure(
    job: Job, cases: Sequence[Case], launch: Callable[[list[str]], list[str]], *, horovod: bool
) -> Measured:
    """Runs update_time with the command that ``launch`` makes."""
    with tempfile.TemporaryDirectory() as directory:
        network, answer = Path(directory, "network.json"), Path(directory, "measured.json")
        write_json(network, job.network.to_dict())
        values = {
            **job.flags,
            "bert_config_file": network,
            "cases": ",".join(map(str, cases)),
            "horovod": horovod,
            "json": answer,
        }
        given = [as_flag(name, value) for name, value in values.items()]
        command = launch([sys.executable, "-m", "benchmarks.update_time", *given])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **_AS_ROOT, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise UserError(f"{shlex.join(command)} failed: {done.stderr.strip()}")
        found = read_json(answer, what="what rank 0 measured")
    seconds = {Case.parse(name): turns for name, turns in found.pop("seconds").items()}
    return Measured(seconds, found)
