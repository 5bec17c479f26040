"""What a run says about itself: printed, or collected by whoever only wants to know it."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Grade(enum.IntEnum):
    """How bad it is: only errors stop a run, and hints are no reason to change anything."""

    FINE = 0
    HINT = 1
    WARNING = 2
    ERROR = 3


class Note(NamedTuple):
    """A sentence on a part of the run, such as its records; the part is "" if it is not known."""

    grade: Grade
    part: str
    sentence: str
