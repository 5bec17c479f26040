"""Starting update_time: in one process, on ranks of one host, or over hosts with slow links."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError
from bert_tf.files import read_json, require_file, write_json
from tools.hosts import Hosts

ROOT = Path(__file__).resolve().parents[1]
LOOPBACK = "loopback"
_TIMEOUT_SECONDS = 3600
# Open MPI refuses to run as root unless told twice; namespaces need root.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank computes and how often; the attributes are update_time's flags.

    Attributes:
      network: written to a file for the ranks.
      options: further flags of update_time, without their dashes.
    """

    network: BertConfig
    micro_batch_size: int
    seq_length: int
    num_threads: int = 1
    precision: str = "auto"
    turns: int = 3
    micro_batches_a_turn: int = 8
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def flags(self) -> dict[str, object]:
        """Flags of update_time, but for the network, the cases and Horovod."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["network"], values["options"]
        return {**values, **self.options}


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a job found.

    Attributes:
      seconds: of one run of each case on the slowest rank, a figure a turn.
      facts: ``ranks``, ``hosts``, ``threads``, ``precision`` and ``gradient_bytes``.
    """

    seconds: dict[Case, list[float]]
    facts: dict[str, Any]

    def median(self, case: Case) -> float:
        """Seconds of one run, the median of the turns."""
        return statistics.median(self.seconds[case])


def run_alone(job: Job, cases: Sequence[Case]) -> Measured:
    """Measures in one process without Horovod."""
    return _run(job, cases, [], horovod=False)


def run_on_one_host(
    job: Job, cases: Sequence[Case], *, ranks: int, bind_to: str = "none"
) -> Measured:
    """Measures with so many ranks under mpirun, on this machine as it is."""
    launcher = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", bind_to]
    return _run(job, cases, launcher, horovod=True)


def run_on_hosts(
    job: Job, cases: Sequence[Case], hosts: Hosts, environment: Mapping[str, str] | None = None
) -> Measured:
    """Measures with one rank on each of the hosts, which get ``environment`` in addition."""
    with tempfile.TemporaryDirectory() as directory:
        program = _program(job, cases, Path(directory), horovod=True)
        try:
            hosts.run(
                program,
                ranks_per_host=[1] * len(hosts.names),
                environment=environment,
                timeout=_TIMEOUT_SECONDS,
            )
        except RuntimeError as error:
            raise UserError(f"the ranks on {len(hosts.names)} hosts failed: {error}") from error
        return _read(Path(directory))


def run_on_link(job: Job, cases: Sequence[Case], link: str) -> Measured:
    """Measures with two ranks, on hosts of a link's Mbit/s or on one host (``loopback``)."""
    if link == LOOPBACK:
        return run_on_one_host(job, cases, ranks=2)
    with Hosts(2, mbit_per_second=mbit_of(link)) as hosts:
        return run_on_hosts(job, cases, hosts)


def mbit_of(link: str) -> float:
    """The rate that a link's name says; raises UserError where it says none."""
    try:
        return float(link)
    except ValueError:
        raise UserError(
            f"--links: {link!r} is neither a rate in Mbit/s nor {LOOPBACK!r}; give such."
        ) from None


def describe_link(link: str) -> str:
    """``1 Gbit/s`` for ``1000``."""
    return "one host" if link == LOOPBACK else f"{mbit_of(link) / 1000:g} Gbit/s"


def read_network(path: str | None, default: BertConfig) -> BertConfig:
    """The network of --bert_config_file, or ``default`` without that flag."""
    if path is None:
        return default
    return BertConfig.from_json_file(require_file(path, flag="bert_config_file"))


def spread_result(
    name: str, values: Sequence[float], unit: str, config: Mapping[str, Any], subject: str = "ours"
) -> Result:
    """The median of the turns as a result, with all of them beside it."""
    described = {**config, "turns": list(values)}
    median = statistics.median(values)
    return {"name": name, "subject": subject, "value": median, "unit": unit, "config": described}


def ratio_result(
    name: str,
    above: Sequence[float],
    below: Sequence[float],
    config: Mapping[str, Any],
    subject: str = "ours",
) -> Result:
    """The ratio of two measurements, turn by turn: what disturbs a turn disturbs both."""
    return spread_result(name, [a / b for a, b in zip(above, below)], "ratio", config, subject)


def print_result(result: Result) -> None:
    """One line: the median and, in brackets, the smallest and the largest turn."""
    turns = result["config"].get("turns", [])
    spread = f"  ({min(turns):.4g} to {max(turns):.4g})" if len(turns) > 1 else ""
    print(f"{result['name']:62}{result['value']:10.4g} {result['unit']}{spread}", flush=True)


def _run(job: Job, cases: Sequence[Case], launcher: Sequence[str], *, horovod: bool) -> Measured:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory() as directory:
        command = [*launcher, *_program(job, cases, Path(directory), horovod=horovod)]
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
            raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return _read(Path(directory))


def _program(job: Job, cases: Sequence[Case], directory: Path, *, horovod: bool) -> list[str]:
    network = directory / "network.json"
    write_json(network, job.network.to_dict())
    flags = {
        **job.flags(),
        "bert_config_file": network,
        "cases": ",".join(map(str, cases)),
        "horovod": str(horovod).lower(),
        "json": directory / "measured.json",
    }
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [sys.executable, "-m", "benchmarks.update_time", *given]


def _read(directory: Path) -> Measured:
    found = read_json(directory / "measured.json", what="what rank 0 measured")
    seconds = {Case.parse(name): turns for name, turns in found.pop("seconds").items()}
    return Measured(seconds, found)
