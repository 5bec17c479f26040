"""Subjects that take turns, and turns that are taken again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Callable

from benchmarks.speed.process import Found
from benchmarks.speed.subjects import Subject
from bert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """When a turn is taken again.

    Attributes:
      most_foreign: the largest share of the machine that others may take during a turn.
      retries: how many more times a disturbed turn is taken; the least disturbed one counts.
    """

    most_foreign: float = 0.06
    retries: int = 2


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What all turns gave.

    Attributes:
      found: of each subject, what its turns wrote, in order; only of those that never failed.
      failures: why the others failed, by subject.
    """

    found: dict[str, list[Found]]
    failures: dict[str, str]

    def raise_failures(self) -> None:
        """Raises UserError where a subject failed; to be called when the others are reported."""
        for name, why in self.failures.items():
            others = [other for other in self.failures if other != name]
            also = f"; so did {', '.join(others)}" if others else ""
            raise UserError(f"{name} failed and is left out: {why}{also}.")


def rotated(subjects: Sequence[Subject], turn: int) -> list[Subject]:
    """The order in a turn: another one begins each time."""
    first = turn % len(subjects)
    return [*subjects[first:], *subjects[:first]]


def take_turns(
    subjects: Sequence[Subject],
    measure: Callable[[Subject], Found],
    *,
    turns: int,
    disturbance: Disturbance,
) -> Comparison:
    """Measures each subject ``turns`` times; one that fails gets no more turns."""
    found: dict[str, list[Found]] = {subject.name: [] for subject in subjects}
    failures: dict[str, str] = {}
    for turn in range(turns):
        for subject in rotated(subjects, turn):
            if subject.name in failures:
                continue
            try:
                found[subject.name].append(_undisturbed(subject, measure, disturbance))
            except UserError as error:
                failures[subject.name] = str(error).rstrip(".")
                print(f"{subject.name} failed: {error}", file=sys.stderr, flush=True)
    return Comparison({n: rows for n, rows in found.items() if n not in failures}, failures)


def _undisturbed(
    subject: Subject, measure: Callable[[Subject], Found], disturbance: Disturbance
) -> Found:
    best: Found | None = None
    for _ in range(1 + disturbance.retries):
        found = measure(subject)
        share = found["foreign_share"] or 0.0  # where it is unknown, nothing can be said
        if best is None or share < best["foreign_share"]:
            best = found
        if share <= disturbance.most_foreign:
            break
        message = f"{subject.name}: other processes took {share:.0%} of the machine in this turn"
        print(message, file=sys.stderr, flush=True)
    return best
