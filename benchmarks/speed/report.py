"""Results and tables of comparisons: medians of turns, their spread, ratios turn by turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.results import Result, ratio_result, spread_result
from benchmarks.speed.process import Found
from benchmarks.speed.subjects import Subject

_MIB = 1 << 20


def step_results(
    task: str,
    subjects: Sequence[Subject],
    found: Mapping[str, Sequence[Found]],
    *,
    sequences: int,
    config: Mapping[str, Any],
) -> list[Result]:
    """Speed, start-up and memory of each subject, and how many times faster ours are than others.

    Args:
      task: what a step is of.
      subjects: of these, those that are in ``found``.
      found: what ``time_steps`` gave in each turn, by the subject's name.
      sequences: of one step.
      config: of each result, in addition to the machine.
    """
    present, rates = present_rates(subjects, found, lambda turn: sequences / turn["seconds"])
    config = {**config, **describe_machine()}
    results = []
    for subject in present:
        turns = found[subject.name]
        figures = {f"{task} step": (rates[subject.name], "sequences/s")}
        if subject.is_limit:
            name = f"{task} step, products alone, {subject.settings['precision']}"
            figures = {name: (rates[subject.name], "sequences/s")}
        else:
            starts = [turn["first_step_seconds"] for turn in turns]
            figures[f"{task}, start to first step"] = starts, "s"
            peaks = [turn["peak_memory_bytes"] / _MIB for turn in turns]
            figures[f"{task}, peak memory"] = peaks, "MiB"
        described = {**config, **_details(subject, turns)}
        for name, (values, unit) in figures.items():
            results.append(spread_result(name, values, unit, described, subject.reported_name))
    return [*results, *ratio_results(f"{task} step", present, rates, config)]


def present_rates(
    subjects: Sequence[Subject],
    found: Mapping[str, Sequence[Found]],
    rate: Callable[[Found], float],
) -> tuple[list[Subject], dict[str, list[float]]]:
    """The subjects that are in ``found``, and the rate of each of their turns by name."""
    present = [subject for subject in subjects if subject.name in found]
    return present, {s.name: [rate(turn) for turn in found[s.name]] for s in present}


def ratio_results(
    what: str,
    subjects: Sequence[Subject],
    rates: Mapping[str, Sequence[float]],
    config: Mapping[str, Any],
) -> list[Result]:
    """How many times faster each of ours is than each other subject, turn by turn."""
    return [
        ratio_result(
            f"{what}, {ours.name} to {other.name}",
            rates[ours.name],
            rates[other.name],
            config,
            subject=ours.name,
        )
        for ours in subjects
        for other in subjects
        if ours.is_compared_with(other)
    ]


def _details(subject: Subject, turns: Sequence[Found]) -> dict[str, Any]:
    """What belongs to a subject's results alone."""
    names = ("gflops",) if subject.is_limit else ("precision", "loss", "tensorflow")
    return {
        "settings": dict(subject.settings),
        "environment": dict(subject.environment),
        "others_share_of_machine": [turn["foreign_share"] for turn in turns],
        "step_seconds": [turn["step_seconds"] for turn in turns],
        **{name: turns[0][name] for name in names if name in turns[0]},
    }


def step_table(
    subjects: Sequence[Subject],
    found: Mapping[str, Sequence[Found]],
    *,
    sequences: int,
    most_foreign: float,
) -> list[str]:
    """A line for each subject; an asterisk where others disturbed a turn.

    The ratio is that of the first of ours to the subject.
    """
    present, rates = present_rates(subjects, found, lambda turn: sequences / turn["seconds"])
    ours = next((subject.name for subject in present if subject.is_ours), None)
    ratio = f"{ours} to it" if ours else ""
    lines = [f"{'':30}{'sequences/s':>12}  {'turns':18}{ratio:>14}{'start, s':>10}{'MiB':>8}"]
    for subject in present:
        turns, of_subject = found[subject.name], rates[subject.name]
        spread = f"{min(of_subject):.4g} to {max(of_subject):.4g}"
        times = f"{_median_ratio(rates[ours], of_subject):.2f}" if ours else ""
        start = statistics.median(turn["first_step_seconds"] for turn in turns)
        memory = statistics.median(turn["peak_memory_bytes"] for turn in turns) / _MIB
        mark = any((turn["foreign_share"] or 0.0) > most_foreign for turn in turns)
        lines.append(
            f"{subject.name + ' *' * mark:30}{statistics.median(of_subject):12.4g}  {spread:18}"
            f"{times:>14}{start:10.1f}{memory:8.0f}"
        )
    return lines


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below))
