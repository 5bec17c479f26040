"""Compares the peak memory of a pre-training update, and the largest batch for a limit.

    python -m benchmarks.memory --google_bert_dir=bert --limit_gib=16 --json=memory.json

Each measurement is the maximum resident memory of a separate process, including its start and first
update. A line through a few batch sizes gives the memory per sequence as its slope, and the largest
batch for the limit; ``--tries`` further processes search for it there. docs/measurements/memory.md
describes the subjects.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.largest_batch import Line, largest_fitting, least_exceeding, search
from benchmarks.machine import machine_line
from benchmarks.results import Result, result
from benchmarks.script import check_length, run_benchmark, shared_flags, whole_numbers
from benchmarks.speed.batches import masked_words
from benchmarks.speed.comparison import subject_flags, subjects_from_flags
from benchmarks.speed.process import run_in_process
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import IN_MEMORY, Subject
from bert_tf.util.errors import UserError

_MIB, _GIB = 1 << 20, 1 << 30

Peaks = dict[int, float]


def measure_peak(subject: Subject, job: StepJob, batch_size: int) -> float:
    """Peak memory in bytes of a process that does some steps of ``batch_size`` sequences."""
    of_size = dataclasses.replace(job, batch_size=batch_size)
    found = run_in_process(subject, of_size.to_json(), "train")
    peak = found["peak_memory_bytes"]
    print(
        f"{subject.name}: {batch_size} sequences of {job.seq_length}: {peak / _MIB:.0f} MiB, "
        f"{found['seconds']:.1f} s per step",
        flush=True,
    )
    return peak


class Fit(NamedTuple):
    """What the peaks for one subject and length imply.

    Attributes:
      line: the line through them.
      largest: the largest batch for the limit, by trial or, if no batch that was tried is too
        large, by the line.
      exceeds: the smallest batch that was tried and does not fit, if any.
    """

    line: Line
    largest: int
    exceeds: int | None

    @classmethod
    def to(cls, peaks: Peaks, limit: float) -> Fit:
        """``peaks`` and ``limit`` in bytes."""
        line, exceeds = Line.through(peaks), least_exceeding(peaks, limit)
        by_line = line.largest_batch(limit)
        return cls(line, by_line if exceeds is None else largest_fitting(peaks, limit), exceeds)


def subject_results(
    subject: Subject, peaks: Peaks, *, limit: float, config: Mapping[str, Any]
) -> list[Result]:
    """Peaks, memory without sequences, memory per sequence and largest batch for the limit.

    ``peaks`` and ``limit`` are in bytes.
    """
    line, largest, exceeds = Fit.to(peaks, limit)
    config = {**config, "settings": dict(subject.settings)}
    of_limit = {**config, "limit_bytes": limit, "smallest_that_exceeds": exceeds}
    name = subject.name
    return [
        *(
            result("peak memory", peak / _MIB, "MiB", {**config, "batch_size": size}, name)
            for size, peak in sorted(peaks.items())
        ),
        result("memory of a sequence", line.of_a_sequence / _MIB, "MiB", config, name),
        result("memory without sequences", line.fixed / _MIB, "MiB", config, name),
        result("largest batch", largest, "sequences", of_limit, name),
    ]


def ratio_results(results: Sequence[Result], subjects: Sequence[Subject]) -> Iterator[Result]:
    """The ratios of our largest batches to those of others, for each length."""
    by_name = {subject.name: subject for subject in subjects}
    largest = [row for row in results if row["name"] == "largest batch"]
    for ours, peer in itertools.product(largest, largest):
        same_length = ours["config"]["seq_length"] == peer["config"]["seq_length"]
        if same_length and by_name[ours["subject"]].is_compared_with(by_name[peer["subject"]]):
            name = f"largest batch, {ours['subject']} to {peer['subject']}"
            ratio = ours["value"] / max(peer["value"], 1)
            yield result(name, ratio, "ratio", ours["config"], ours["subject"])


def memory_table(peaks: Mapping[tuple[str, int], Peaks], limit: float) -> list[str]:
    """A line per subject and length; ``<`` if both the largest and a larger batch were tried."""
    head = f"largest in {limit / _GIB:g} GiB"
    lines = [f"{'':28}{'tokens':>8}{'MiB + MiB a sequence':>24}{head:>22}   peaks, MiB"]
    for (name, length), found in peaks.items():
        line, largest, exceeds = Fit.to(found, limit)
        words = f"{line.fixed / _MIB:.0f} + {line.of_a_sequence / _MIB:.1f}"
        batch = f"{largest} " + (f"< {exceeds}" if exceeds else "(by the line)")
        of_sizes = "  ".join(f"{size}: {peak / _MIB:.0f}" for size, peak in sorted(found.items()))
        lines.append(f"{name:28}{length:8}{words:>24}{batch:>22}   {of_sizes}")
    return lines


def measure() -> Iterator[Result]:
    """Measures as specified by the flags, and prints a table."""
    values = flags.FLAGS
    lengths = whole_numbers("lengths", least=2)
    tokens = sorted(set(whole_numbers("tokens", least=2 * max(lengths))))
    if len(tokens) < 2:
        raise UserError(f"--tokens={','.join(values.tokens)}: give two numbers, to fit a line.")
    job = StepJob.from_flags(PRETRAINING, batch_size=1, seq_length=lengths[0])
    check_length("lengths", max(lengths), job.network)
    subjects = subjects_from_flags(IN_MEMORY)
    limit = values.limit_gib * _GIB
    print(machine_line(), flush=True)
    peaks: dict[tuple[str, int], Peaks] = {}
    results: list[Result] = []
    for length, subject in itertools.product(lengths, subjects):
        of_length = dataclasses.replace(job, seq_length=length, predictions=masked_words(length))
        peak_of = functools.partial(measure_peak, subject, of_length)
        first = {of // length: peak_of(of // length) for of in tokens}
        found = search(peak_of, first, limit=limit, tries=values.tries)
        peaks[subject.name, length] = found
        steps = job.warmup_steps + job.steps
        config = {"network": job.network.to_dict(), "steps": steps, "seq_length": length}
        results += (rows := subject_results(subject, found, limit=limit, config=config))
        yield from rows
    yield from ratio_results(results, subjects)
    print("\n" + "\n".join(memory_table(peaks, limit)), flush=True)


FLAGS = {
    **subject_flags(IN_MEMORY),
    **shared_flags("threads", "bert_config_file", warmup_steps=1, steps=2),
    "lengths": (["128", "256", "512"], "Tokens per sequence."),
    "tokens": (["2048", "8192"], "Tokens of the batches through which the line is fitted."),
    "limit_gib": (16.0, "Memory limit of a process in GiB.", 0.1),
    "tries": (4, "Further batches to try around the limit (0: none).", 0),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
