"""Peak memory of a pre-training update and the largest batch for a limit, here and elsewhere.

    python -m benchmarks.memory --google_bert_dir=bert --limit_gib=16 --json=memory.json

Each measurement is a process of its own, and its figure the largest resident memory of it, start
and first update included. A few batch sizes give a line, whose slope is a sequence's memory;
the line gives the largest batch for the limit, and ``--tries`` more processes look for it there.
docs/memory.md says who takes part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.largest_batch import Line, largest_fitting, least_exceeding, search
from benchmarks.machine import describe_machine
from benchmarks.rank_jobs import Result, read_network
from benchmarks.speed.comparison import (
    define_subject_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.process import run_in_process
from benchmarks.speed.report import machine_line
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import BERT_BASE, IN_MEMORY, Subject
from bert_tf import environment
from bert_tf.command_line import run_command
from bert_tf.errors import UserError
from bert_tf.files import write_json

_MIB, _GIB = 1 << 20, 1 << 30
_GOOGLE_FILES = ("modeling.py", "optimization.py", "run_pretraining.py")
_MASKED_SHARE = 0.15  # Devlin et al. 2018

Peaks = dict[int, float]


def measure_peak(subject: Subject, job: StepJob, batch_size: int) -> float:
    """The largest memory of a process that takes some steps of so many sequences, in bytes."""
    of_size = dataclasses.replace(job, batch_size=batch_size)
    found = run_in_process(subject, of_size.to_json(), "train")
    peak = found["peak_memory_bytes"]
    print(
        f"{subject.name}: {batch_size} sequences of {job.seq_length}: {peak / _MIB:.0f} MiB, "
        f"{found['seconds']:.1f} s a step",
        flush=True,
    )
    return peak


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
      config: beside the machine, for each result.
    """
    results: list[Result] = []
    largest: dict[tuple[str, int], int] = {}
    by_name = {subject.name: subject for subject in subjects}
    for (name, length), found in peaks.items():
        described = {
            **config,
            **describe_machine(),
            "seq_length": length,
            "settings": dict(by_name[name].settings),
            "environment": dict(by_name[name].environment),
        }

        def add(what, value, unit, name=name, described=described, **facts):
            facts = {**described, **facts}
            results.append(
                {"name": what, "subject": name, "value": value, "unit": unit, "config": facts}
            )

        for size, peak in sorted(found.items()):
            add("peak memory", peak / _MIB, "MiB", batch_size=size)
        line = Line.through(found)
        add("memory of a sequence", line.of_a_sequence / _MIB, "MiB")
        add("memory without sequences", line.fixed / _MIB, "MiB")
        exceeds = least_exceeding(found, limit)
        # What was tried counts; where nothing too large was, the line does.
        largest[name, length] = (
            line.largest_batch(limit) if exceeds is None else largest_fitting(found, limit)
        )
        facts = {"limit_bytes": limit, "smallest_that_exceeds": exceeds}
        add("largest batch", largest[name, length], "sequences", **facts)
    for (ours, length), batch in largest.items():
        for (other, of_length), theirs in largest.items():
            if of_length != length or not by_name[ours].is_ours or by_name[other].is_ours:
                continue
            facts = {**config, **describe_machine(), "seq_length": length, "limit_bytes": limit}
            name = f"largest batch, {ours} to {other}"
            ratio = batch / max(theirs, 1)
            results.append(
                {"name": name, "subject": ours, "value": ratio, "unit": "ratio", "config": facts}
            )
    return results


def memory_table(results: Sequence[Result], limit_gib: float) -> list[str]:
    """A line for each subject and length; ``<`` where the largest batch was tried, and a larger."""
    head = f"largest in {limit_gib:g} GiB"
    lines = [f"{'':28}{'tokens':>8}{'MiB + MiB a sequence':>24}{head:>22}   peaks, MiB"]
    for row in results:
        if row["name"] != "largest batch":
            continue
        same = [
            other
            for other in results
            if other["subject"] == row["subject"]
            and other["config"]["seq_length"] == row["config"]["seq_length"]
        ]
        values = {other["name"]: other["value"] for other in same}
        peaks = "  ".join(
            f"{other['config']['batch_size']}: {other['value']:.0f}"
            for other in same
            if other["name"] == "peak memory"
        )
        line = f"{values['memory without sequences']:.0f} + {values['memory of a sequence']:.1f}"
        exceeds = row["config"]["smallest_that_exceeds"]
        batch = f"{row['value']} " + (f"< {exceeds}" if exceeds else "(by the line)")
        length = row["config"]["seq_length"]
        lines.append(f"{row['subject']:28}{length:8}{line:>24}{batch:>22}   {peaks}")
    return lines


def measure() -> None:
    """Measures as the flags say; prints a table and writes the results after each subject."""
    values = flags.FLAGS
    network = read_network(values.bert_config_file, BERT_BASE)
    lengths = [_count("lengths", text, 2) for text in values.lengths]
    tokens = sorted({_count("tokens", text, 2 * max(lengths)) for text in values.tokens})
    if len(tokens) < 2:
        raise UserError(f"--tokens={','.join(values.tokens)}: give two numbers, to draw a line.")
    positions = network.max_position_embeddings
    if max(lengths) > positions:
        raise UserError(
            f"--lengths: {max(lengths)} is more than the network's {positions} positions; lower it."
        )
    subjects = subjects_from_flags(IN_MEMORY)
    job = StepJob(
        task=PRETRAINING,
        network=network,
        batch_size=1,
        seq_length=lengths[0],
        predictions=1,
        accumulation_steps=1,
        threads=values.threads or environment.available_cores(),
        warmup_steps=values.warmup_steps,
        timed_steps=values.steps,
        google_bert_dir=google_bert_dir_from_flags(_GOOGLE_FILES),
    )
    limit = values.limit_gib * _GIB
    config = {"network": network.to_dict(), "steps": values.warmup_steps + values.steps}
    print(machine_line(), flush=True)
    peaks: dict[tuple[str, int], Peaks] = {}
    results: list[Result] = []
    for length in lengths:
        predictions = max(1, round(_MASKED_SHARE * length))
        of_length = dataclasses.replace(job, seq_length=length, predictions=predictions)
        for subject in subjects:

            def peak_of(batch: int, subject=subject, of_length=of_length) -> float:
                return measure_peak(subject, of_length, batch)

            first = {of // length: peak_of(of // length) for of in tokens}
            peaks[subject.name, length] = search(peak_of, first, limit=limit, tries=values.tries)
            results = memory_results(peaks, subjects, limit=limit, config=config)
            if values.json:
                write_json(values.json, results)
    print("\n" + "\n".join(memory_table(results, values.limit_gib)), flush=True)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.memory``."""
    define_subject_flags(IN_MEMORY)
    flags.DEFINE_string("bert_config_file", None, "The network; BERT-base if not given.")
    flags.DEFINE_list("lengths", ["128", "256", "512"], "Tokens of a sequence.")
    flags.DEFINE_list(
        "tokens", ["2048", "8192"], "Tokens of the batches that the line is drawn through."
    )
    flags.DEFINE_float("limit_gib", 16.0, "Memory that a process may take.", lower_bound=0.1)
    flags.DEFINE_integer("tries", 4, "Further batches about the limit, 0: none.", lower_bound=0)
    flags.DEFINE_integer("threads", None, "Cores to use; all if not given.", lower_bound=1)
    flags.DEFINE_integer("warmup_steps", 1, "Steps before the timed ones.", lower_bound=1)
    flags.DEFINE_integer("steps", 2, "Timed steps.", lower_bound=1)
    flags.DEFINE_string("json", None, "Where to write the results.")


def _count(flag: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"--{flag}: {text} must be a whole number of at least {least}.")
    return int(text)


if __name__ == "__main__":
    define_flags()
    run_command(lambda _: measure())
