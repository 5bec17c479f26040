"""Subjects that take turns, and turns that are taken again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.speed.process import Found
from benchmarks.speed.subjects import Subject
from bert_tf.util.errors import UserError

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Turns:
    """What all turns gave.

    Attributes:
      found: of each subject, what its turns found, in order; only of those that never failed.
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


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """The order in a turn: another one begins each time."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def take_turns(
    subjects: Sequence[Subject],
    measure: Callable[[Subject], Found],
    *,
    turns: int,
    most_foreign: float = 0.06,
    retries: int = 2,
) -> Turns:
    """Measures each subject ``turns`` times; one that fails gets no more turns.

    Args:
      subjects: in the order of the first turn.
      measure: gives what it found, ``foreign_share`` among it.
      turns: of each subject.
      most_foreign: the largest share of the machine that others may take during a turn.
      retries: how many more times a disturbed turn is taken; the least disturbed one counts.
    """
    found: dict[str, list[Found]] = {subject.name: [] for subject in subjects}
    failures: dict[str, str] = {}
    for turn in range(turns):
        for subject in rotated(subjects, turn):
            if subject.name in failures:
                continue
            best: Found | None = None
            try:
                for _ in range(1 + retries):
                    now = measure(subject)
                    share = now["foreign_share"] or 0.0  # where it is unknown, nothing can be said
                    if best is None or share < best["foreign_share"]:
                        best = now
                    if share <= most_foreign:
                        break
                    message = f"other processes took {share:.0%} of the machine in this turn"
                    print(f"{subject.name}: {message}", file=sys.stderr, flush=True)
                found[subject.name].append(best)
            except UserError as error:
                failures[subject.name] = str(error).rstrip(".")
                print(f"{subject.name} failed: {error}", file=sys.stderr, flush=True)
    return Turns({n: rows for n, rows in found.items() if n not in failures}, failures)
