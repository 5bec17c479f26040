"""Peak memory of a pre-training update and the largest batch for a limit, here and elsewhere.

    python -m benchmarks.memory --google_bert_dir=bert --limit_gib=16 --json=memory.json

Each measurement is a process of its own, and its figure the largest resident memory of it, start
and first update included. A few batch sizes give a line, whose slope is a sequence's memory;
the line gives the largest batch for the limit, and ``--tries`` more processes look for it there.
docs/memory.md says who takes part.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks.largest_batch import Line, largest_fitting, least_exceeding, search
from benchmarks.machine import describe_machine, machine_line
from benchmarks.results import Result, result
from benchmarks.script import check_length, define_shared_flags, run_benchmark, whole_numbers
from benchmarks.speed.batches import masked_words
from benchmarks.speed.comparison import (
    define_subject_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.process import run_in_process
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import IN_MEMORY, Subject
from bert_tf.errors import UserError
from bert_tf.files import write_json

_MIB, _GIB = 1 << 20, 1 << 30
_GOOGLE_FILES = ("modeling.py", "optimization.py", "run_pretraining.py")

Peaks = dict[int, float]


def measure_peak(subject: Subject, job: StepJob, batch_size: int) -> float:
    """Bytes of memory that a process takes at most in some steps of ``batch_size`` sequences."""
    of_size = dataclasses.replace(job, batch_size=batch_size)
    found = run_in_process(subject, of_size.to_json(), "train")
    peak = found["peak_memory_bytes"]
    print(
        f"{subject.name}: {batch_size} sequences of {job.seq_length}: {peak / _MIB:.0f} MiB, "
        f"{found['seconds']:.1f} s a step",
        flush=True,
    )
    return peak


class Fit(NamedTuple):
    """What peaks of one subject and length say.

    Attributes:
      line: through them.
      largest: the largest batch for the limit. What was tried counts; where nothing too large was,
        the line does.
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


def memory_results(
    peaks: Mapping[tuple[str, int], Peaks],
    subjects: Sequence[Subject],
    *,
    limit: float,
    config: Mapping[str, Any],
) -> list[Result]:
    """Peaks, fixed memory, memory of a sequence and largest batch, with the ratio of ours.

    Args:
      peaks: bytes by batch size, for each subject's name and length.
      subjects: of these, those that are in ``peaks``.
      limit: bytes that a process may take.
      config: of each result, in addition to the machine.
    """
    results: list[Result] = []
    by_name = {subject.name: subject for subject in subjects}
    config = {**config, "limit_bytes": limit, **describe_machine()}
    fits = {of: Fit.to(found, limit) for of, found in peaks.items()}
    for (name, length), (line, largest, exceeds) in fits.items():
        described = {**config, "seq_length": length, "settings": dict(by_name[name].settings)}
        for size, peak in sorted(peaks[name, length].items()):
            of_size = {**described, "batch_size": size}
            results.append(result("peak memory", peak / _MIB, "MiB", of_size, name))
        of_limit = {**described, "smallest_that_exceeds": exceeds}
        results += [
            result("memory of a sequence", line.of_a_sequence / _MIB, "MiB", described, name),
            result("memory without sequences", line.fixed / _MIB, "MiB", described, name),
            result("largest batch", largest, "sequences", of_limit, name),
        ]
        for (peer, of_length), theirs in fits.items():
            if of_length == length and by_name[name].is_compared_with(by_name[peer]):
                what = f"largest batch, {name} to {peer}"
                ratio = largest / max(theirs.largest, 1)
                results.append(result(what, ratio, "ratio", described, name))
    return results


def memory_table(peaks: Mapping[tuple[str, int], Peaks], limit: float) -> list[str]:
    """A line for each subject and length; ``<`` where the largest batch was tried, and a larger."""
    head = f"largest in {limit / _GIB:g} GiB"
    lines = [f"{'':28}{'tokens':>8}{'MiB + MiB a sequence':>24}{head:>22}   peaks, MiB"]
    for (name, length), found in peaks.items():
        line, largest, exceeds = Fit.to(found, limit)
        words = f"{line.fixed / _MIB:.0f} + {line.of_a_sequence / _MIB:.1f}"
        batch = f"{largest} " + (f"< {exceeds}" if exceeds else "(by the line)")
        of_sizes = "  ".join(f"{size}: {peak / _MIB:.0f}" for size, peak in sorted(found.items()))
        lines.append(f"{name:28}{length:8}{words:>24}{batch:>22}   {of_sizes}")
    return lines


def measure() -> None:
    """Measures as the flags say; prints a table and writes the results after each subject."""
    values = flags.FLAGS
    lengths = whole_numbers("lengths", least=2)
    tokens = sorted(set(whole_numbers("tokens", least=2 * max(lengths))))
    if len(tokens) < 2:
        raise UserError(f"--tokens={','.join(values.tokens)}: give two numbers, to draw a line.")
    job = StepJob.from_flags(
        PRETRAINING,
        batch_size=1,
        seq_length=lengths[0],
        google_bert_dir=google_bert_dir_from_flags(_GOOGLE_FILES),
    )
    check_length("lengths", max(lengths), job.network)
    subjects = subjects_from_flags(IN_MEMORY)
    limit = values.limit_gib * _GIB
    config = {"network": job.network.to_dict(), "steps": values.warmup_steps + values.steps}
    print(machine_line(), flush=True)
    peaks: dict[tuple[str, int], Peaks] = {}
    results: list[Result] = []
    for length in lengths:
        of_length = dataclasses.replace(job, seq_length=length, predictions=masked_words(length))
        for subject in subjects:
            peak_of = functools.partial(measure_peak, subject, of_length)
            first = {of // length: peak_of(of // length) for of in tokens}
            peaks[subject.name, length] = search(peak_of, first, limit=limit, tries=values.tries)
            results = memory_results(peaks, subjects, limit=limit, config=config)
            if values.json:
                write_json(values.json, results)
    print("\n" + "\n".join(memory_table(peaks, limit)), flush=True)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.memory``."""
    define_subject_flags(IN_MEMORY)
    define_shared_flags("threads", "bert_config_file", warmup_steps=1, steps=2)
    flags.DEFINE_list("lengths", ["128", "256", "512"], "Tokens of a sequence.")
    flags.DEFINE_list(
        "tokens", ["2048", "8192"], "Tokens of the batches that the line is drawn through."
    )
    flags.DEFINE_float("limit_gib", 16.0, "Memory that a process may take.", lower_bound=0.1)
    flags.DEFINE_integer("tries", 4, "Further batches about the limit, 0: none.", lower_bound=0)


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
