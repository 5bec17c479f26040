"""Brightics' study of distilling BERT over Horovod: measures its steps on a small scale, predicts.

    python -m benchmarks.studies.distillation_study --json=distillation_study.json

The study went from an allreduce after each micro batch of 9 sequences to larger micro batches, to
one allreduce for 50 of them, and to more GPUs. Part one takes the same steps on two ranks, on hosts
for each of ``--links`` (network namespaces, which need root; ``loopback`` is one host, ``--links=``
skips part one), with a teacher of ``--bert_config_file`` and a student of half its layers, and
reports the minutes for as many sequences as --epochs epochs of --records have. Part two fits the
time of a sequence and of an allreduce to two of the published rows, and predicts the others.
Neither covers several rings, which are a feature of NCCL's network plug-ins.

docs/howto/distillation.md has the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from absl import flags

from benchmarks.communication import cases as kinds
from benchmarks.communication import model
from benchmarks.communication.cases import Case
from benchmarks.communication.model import Link
from benchmarks.communication.rank_jobs import LOOPBACK, Job, describe_link, run_on_link
from benchmarks.results import Result, printed, result, spread_result
from benchmarks.script import run_benchmark, shared_flags
from benchmarks.speed.steps import DISTILLATION
from benchmarks.studies.delayed_allreduce import NETWORK, RANKS

_STEPS = 50  # micro batches per update
_EVERY, _ONCE = Case(kinds.EVERY_MICRO_BATCH, _STEPS), Case(kinds.DELAYED, _STEPS)


class Row(NamedTuple):
    """A published row, with the study's minutes for three epochs."""

    name: str
    gpus: int
    micro_batch_size: int
    is_delayed: bool
    minutes: float


STUDY = (
    Row("micro batch 9", 8, 9, False, 438),
    Row("micro batch 16", 8, 16, False, 402),
    Row("one allreduce in 50", 8, 16, True, 204),
    Row("4 hosts", 32, 16, True, 70),
    Row("4 hosts, several rings", 32, 16, True, 66),
    Row("8 hosts", 64, 16, True, 32),
)
_FITTED = STUDY[1:3]


def predicted_minutes(row: Row) -> float:
    """What the fitted rows predict for another one, if links are equal and computation scales."""
    every, once = _FITTED
    # minutes = computation + number of allreduces in the training x minutes per allreduce
    per_sequence = 1 / every.micro_batch_size - 1 / (once.micro_batch_size * _STEPS)
    allreduces = (every.minutes - once.minutes) / per_sequence
    computation = every.minutes - allreduces / every.micro_batch_size
    ring, of_fitted = (
        model.ring_allreduce_seconds(1.0, gpus, Link(1.0)) for gpus in (row.gpus, every.gpus)
    )
    steps = _STEPS if row.is_delayed else 1
    share = every.gpus / row.gpus
    return share * (computation + allreduces / (row.micro_batch_size * steps) * ring / of_fitted)


def measure(link: str) -> Iterator[Result]:
    """The first steps on two ranks: the time of all epochs, and its ratio to the first row's."""
    medians: list[float] = []
    for size, rows in itertools.groupby(STUDY[:3], key=lambda row: row.micro_batch_size):
        job = Job.from_flags(NETWORK).with_flags(
            micro_batch_size=size, task=DISTILLATION, micro_batches_a_turn=_STEPS
        )
        cases = {row: _ONCE if row.is_delayed else _EVERY for row in rows}
        # Cases take turns in one job, so that a disturbance affects all of them.
        found = run_on_link(job, list(cases.values()), link)
        sequences = flags.FLAGS.epochs * flags.FLAGS.records
        config = job.described(**found.details, link=describe_link(link), sequences=sequences)
        updates = sequences / (RANKS * size * _STEPS)
        for row, case in cases.items():
            minutes = [seconds * updates / 60 for seconds in found.seconds[case]]
            measured = spread_result(row.name, minutes, "minutes", config)
            medians.append(measured["value"])
            yield measured
            yield result(f"{row.name}, to the first", medians[-1] / medians[0], "ratio", config)


def print_study() -> Iterator[Result]:
    """Prints the published rows with their ratios and the model's; yields all as results."""
    print(f"\n{'three epochs, minutes':28}{'GPUs':>6}{'published':>11}{'ratio':>8}{'model':>8}")
    for row in STUDY:
        minutes, ratio = predicted_minutes(row), row.minutes / STUDY[0].minutes
        note = "   fitted" if row in _FITTED else ""
        print(
            f"{row.name:28}{row.gpus:6}{row.minutes:11g}{ratio:8.2f}{minutes:8.0f}{note}",
            flush=True,
        )
        config = row._asdict()
        yield result("distillation, three epochs", row.minutes, "minutes", config, "Brightics")
        yield result("distillation, three epochs", minutes, "minutes", config, "model")


def run() -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    for link in flags.FLAGS.links:
        print(f"\n{describe_link(link)}, {RANKS} ranks", flush=True)
        yield from printed(measure(link))
    yield from print_study()


FLAGS = {
    "links": (["200", "1000", LOOPBACK], "Rate of each link in Mbit/s, or loopback."),
    "epochs": (3, "Passes over the records.", 1),
    "records": (100_000, "Sequences per epoch.", 1),
    **shared_flags("bert_config_file", "precision", "json", seq_length=64, turns=3),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, run)
