"""What the doctor says: sentences of several grades, each once."""

from __future__ import annotations

import contextlib
import enum
import io
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from bert_tf.util.errors import UserError

Result = TypeVar("Result")

_WARNING = "warning: "
# What a run says of itself that is worth repeating.
_REMARKS = ("changed since", "resuming from", "starting from", "the learning rate", "the network's")


class Grade(enum.IntEnum):
    """How bad it is: only errors stop a run, and hints are no reason to change anything."""

    FINE = 0
    HINT = 1
    WARNING = 2
    ERROR = 3


class Finding(NamedTuple):
    """A sentence on a part of the run."""

    grade: Grade
    part: str
    sentence: str


class Findings:
    """Collects findings; of equal sentences the first one counts."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    @property
    def worst(self) -> Grade:
        """The worst grade."""
        return max((finding.grade for finding in self), default=Grade.FINE)

    @property
    def status(self) -> int:
        """The exit status: 2 with errors, 1 with warnings, 0 otherwise."""
        return {Grade.ERROR: 2, Grade.WARNING: 1}.get(self.worst, 0)

    def add(self, grade: Grade, part: str, sentence: str) -> None:
        """Adds a sentence, unless it has been said."""
        if sentence not in {finding.sentence for finding in self}:
            self._found.append(Finding(grade, part, sentence))

    def fine(self, part: str, sentence: str) -> None:
        """Adds what is as it should be."""
        self.add(Grade.FINE, part, sentence)

    def hint(self, part: str, sentence: str) -> None:
        """Adds what may be worth knowing."""
        self.add(Grade.HINT, part, sentence)

    def warn(self, part: str, sentence: str) -> None:
        """Adds what looks unwise."""
        self.add(Grade.WARNING, part, sentence)

    def error(self, part: str, sentence: str) -> None:
        """Adds what will go wrong."""
        self.add(Grade.ERROR, part, sentence)

    def attempt(
        self, part: str, action: Callable[..., Result], *arguments: object, **named: object
    ) -> Result | None:
        """The result of an action; None if it raises a UserError, which becomes an error.

        What the action prints is not shown, but its warnings become findings.
        """
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                return action(*arguments, **named)
        except UserError as error:
            self.error(part, str(error))
            return None
        finally:
            self._read(part, output.getvalue().splitlines())

    def _read(self, part: str, lines: Sequence[str]) -> None:
        for line in lines:
            if line.startswith(_WARNING):
                self.warn(part, line[len(_WARNING) :])
            elif line.startswith(_REMARKS):
                self.hint(part, line)
