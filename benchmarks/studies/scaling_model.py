"""Predicts the time of an update on any number of ranks, and compares it with measurements.

    python -m benchmarks.studies.scaling_model --json=scaling_model.json

Part one checks the model: on 2, 3 and 4 hosts (network namespaces, which need root) with a link of
1 Gbit/s it predicts the allreduce and the update, and shows the error. What the hosts do without
the network (computation, waiting for each other, copies, sums) is measured on each number of hosts
with unthrottled links, since hosts share this machine's cores; the time that the link adds is
predicted. Its bandwidth and latency, and the fraction of it that computation hides, are measured on
the smallest number of hosts. ``--hosts=`` skips this part.

Part two takes the speed of one GPU from NVIDIA's published figures and predicts the efficiency of 8
to 1024 of them for BERT-base and BERT-large. Part three does the same for clusters whose speed-up
was published. Neither models stragglers, input or a concurrent optimizer: the difference between
published figures and the prediction is the cost of these.

docs/howto/many_machines.md has the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import flags

from benchmarks.communication import cases as kinds
from benchmarks.communication import model
from benchmarks.communication.cases import Case
from benchmarks.communication.model import Link
from benchmarks.communication.rank_jobs import Job, Measured, describe_link, mbit_of, run_on_hosts
from benchmarks.results import Result, printed, result, spread_result
from benchmarks.script import run_benchmark, shared_flags, whole_numbers
from benchmarks.studies.delayed_allreduce import NETWORK
from benchmarks.studies.predicted_scaling import print_efficiencies, print_published
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from tools.hosts import Hosts

# Open MPI would choose by size and number of ranks; the model describes the ring.
RING = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
}
# Available on every Linux. With BBR, two ranks that send both ways on one connection are slower.
CONGESTION_CONTROL = "reno"
_FITTED_BYTES = (1 << 20, 1 << 22, 1 << 23, 1 << 24)
_COMMUNICATION, _UPDATE = Case(kinds.COMMUNICATION), Case(kinds.DELAYED)


class Pair(NamedTuple):
    """Measurements of the same job on the same hosts.

    Attributes:
      free: with unthrottled links.
      slow: with the links under test.
    """

    free: Measured
    slow: Measured

    def link_seconds(self, case: Case) -> float:
        """The time that the link added."""
        return self.slow.median(case) - self.free.median(case)


class Fitted(NamedTuple):
    """The properties of a link, measured on the smallest number of hosts.

    Attributes:
      link: its bandwidth and latency as seen by a ring.
      hidden_share: hidden fraction of the time on the link, in an update of one micro batch.
    """

    link: Link
    hidden_share: float


def fit(pair: Pair) -> Fitted:
    """Fits the model to jobs that timed ``_FITTED_BYTES`` and an update of one micro batch."""
    added = [pair.link_seconds(Case(kinds.ALLREDUCE, size)) for size in _FITTED_BYTES]
    try:
        link = model.fit_ring(_FITTED_BYTES, added, pair.slow.details["ranks"])
    except ValueError as error:
        raise UserError(f"the link cannot be measured here: {error}; use a slower one.") from error
    hidden = model.hidden_share(
        pair.slow.median(_UPDATE), pair.free.median(_UPDATE), pair.link_seconds(_COMMUNICATION)
    )
    return Fitted(link, hidden)


def check_results(
    pair: Pair, fitted: Fitted, accumulation_steps: int, config: dict[str, object]
) -> Iterator[Result]:
    """Measured and predicted seconds of the allreduce and of both updates, and the errors.

    The measurements are on the slow link and without the network.

    An update of several micro batches communicates after the last, so nothing is hidden; the
    fraction hidden in an update of one was measured on the smallest number of hosts.
    """
    details = pair.slow.details
    on_link = model.ring_allreduce_seconds(details["gradient_bytes"], details["ranks"], fitted.link)
    hidden_shares = {
        _COMMUNICATION: 0.0,
        _UPDATE: fitted.hidden_share,
        Case(kinds.DELAYED, accumulation_steps): 0.0,
    }
    found = {**dataclasses.asdict(fitted.link), "hidden_share": fitted.hidden_share}
    described = {**config, **details, "fitted": found}
    for case, hidden in hidden_shares.items():
        name = "allreduce of the gradients"
        if case.kind == kinds.DELAYED:
            name = f"update of {case.number} micro batches"
        name = f"{name}, {details['ranks']} hosts"
        seconds = model.update_seconds(pair.free.median(case), on_link, hidden)
        yield spread_result(name, pair.slow.seconds[case], "s", described)
        yield spread_result(f"{name}, by themselves", pair.free.seconds[case], "s", described)
        yield result(f"{name}, predicted", seconds, "s", described, "model")
        error = 100.0 * (seconds / pair.slow.median(case) - 1.0)
        yield result(f"{name}, error", error, "%", described, "model")


def measure_check(
    job: Job, hosts: Sequence[int], link: str, accumulation_steps: int, config: dict[str, object]
) -> Iterator[Result]:
    """Part one on one link: two jobs on each number of hosts; fits the model to the first."""
    checked = [_COMMUNICATION, _UPDATE, Case(kinds.DELAYED, accumulation_steps)]
    sizes = [Case(kinds.ALLREDUCE, size) for size in _FITTED_BYTES]
    how = {"environment": RING, "congestion_control": CONGESTION_CONTROL}
    described = {**config, "link": describe_link(link), **how}
    fitted = None
    for count in hosts:
        pair = _measure_pair(job, [*checked, *(sizes if fitted is None else ())], count, link)
        if fitted is None:
            fitted = fit(pair)
            print(
                f"\n{describe_link(link)}: {fitted.link.bytes_per_second / 1e6:.1f} MB/s, "
                f"{fitted.link.latency_seconds * 1e3:.2f} ms before the first byte, "
                f"{fitted.hidden_share:.0%} of the time on it hidden by the backward pass",
                flush=True,
            )
        yield from printed(check_results(pair, fitted, accumulation_steps, described))


def _measure_pair(job: Job, cases: Sequence[Case], count: int, link: str) -> Pair:
    with Hosts(count, congestion_control=CONGESTION_CONTROL) as hosts:
        free = run_on_hosts(job, cases, hosts, RING)
        hosts.set_rate(mbit_of(link))
        return Pair(free, run_on_hosts(job, cases, hosts, RING))


def run() -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    values = flags.FLAGS
    hosts = whole_numbers("hosts", may_be_empty=True)
    if hosts and hosts[0] < 2:
        raise UserError(f"--hosts={','.join(values.hosts)}: one host sends nothing; start with 2.")
    job = Job.from_flags(NETWORK)
    for link in values.links if hosts else ():
        config = job.described()
        yield from measure_check(job, hosts, link, values.accumulation_steps, config)
    environment.quiet_tensorflow(verbose=False)
    yield from print_efficiencies()
    yield from print_published()


FLAGS = {
    "hosts": (["2", "3", "4"], "Numbers of hosts to check; the model is fitted to the first."),
    "links": (["1000"], "Rate of each link to check, in Mbit/s."),
    "accumulation_steps": (4, "Micro batches per update.", 2),
    **shared_flags("bert_config_file", "micro_batch_size", "turns", "micro_batches_a_turn"),
    **shared_flags("json", seq_length=64),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, run)
