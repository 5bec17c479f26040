"""Lets subjects take turns, and repeats disturbed turns."""

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
    """The findings of all turns.

    Attributes:
      found: each subject's findings, turn by turn; only subjects that never failed.
      failures: reasons why the others failed, by subject.
    """

    found: dict[str, list[Found]]
    failures: dict[str, str]

    def raise_failures(self) -> None:
        """Raises UserError if a subject failed; call it after reporting the others."""
        for name, why in self.failures.items():
            others = [other for other in self.failures if other != name]
            also = f"; so did {', '.join(others)}" if others else ""
            raise UserError(f"{name} failed and is left out: {why}{also}.")


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """The order in a turn, which starts with a different item each time."""
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
    """Measures each subject ``turns`` times; a subject that fails gets no more turns.

    Args:
      subjects: in the order of the first turn.
      measure: returns findings, including ``foreign_share``.
      turns: number of turns per subject.
      most_foreign: largest fraction of the machine that others may use during a turn.
      retries: how often to repeat a disturbed turn; the least disturbed one counts.
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
                    share = now["foreign_share"] or 0.0  # if unknown, assume none
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
