"""The doctor's findings: sentences with grades, none repeated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from bert_tf.util.console import Grade, Note, collected_notes
from bert_tf.util.errors import UserError

Result = TypeVar("Result")


class Findings:
    """Collects notes on a run; of notes with equal sentences, only the worst is kept."""

    def __init__(self) -> None:
        self._notes: dict[str, Note] = {}

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes.values())

    @property
    def worst(self) -> Grade:
        """The worst grade."""
        return max((note.grade for note in self), default=Grade.FINE)

    @property
    def status(self) -> int:
        """The exit status: 2 with errors, 1 with warnings, 0 otherwise."""
        return {Grade.ERROR: 2, Grade.WARNING: 1}.get(self.worst, 0)

    def extend(self, notes: Iterable[Note], *, part: str = "") -> None:
        """Adds notes; ``part`` is used for those that have none."""
        for note in notes:
            other = self._notes.get(note.sentence)
            if other is None or other.grade < note.grade:
                self._notes[note.sentence] = Note(note.grade, note.part or part, note.sentence)

    def _add(self, grade: Grade, part: str, sentence: str) -> None:
        self.extend([Note(grade, part, sentence)])

    fine = functools.partialmethod(_add, Grade.FINE)  # as it should be
    hint = functools.partialmethod(_add, Grade.HINT)  # may be worth knowing
    warn = functools.partialmethod(_add, Grade.WARNING)  # looks unwise
    error = functools.partialmethod(_add, Grade.ERROR)  # will fail

    def attempt(
        self, part: str, action: Callable[..., Result], *arguments: object, **named: object
    ) -> Result | None:
        """Returns the result of an action, or None if it raises a UserError, which is recorded.

        Notes reported meanwhile become findings.
        """
        with collected_notes() as notes:
            try:
                return action(*arguments, **named)
            except UserError as error:
                self.error(part, str(error))
                return None
            finally:
                self.extend(notes, part=part)
