"""Entities in labelled sentences, and how many of them were found: conlleval's definition.

conlleval is the program that scores CoNLL's shared tasks on chunks and names (Tjong Kim Sang and
Buchholz 2000; Tjong Kim Sang and De Meulder 2003): an entity is found if one of the same type
begins and ends at the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
# The type of entities whose labels are prefixes alone.
ONLY_TYPE = "_"

_LABEL = re.compile(r"(?P<prefix>[BIES])(?:-(?P<type>.+))?")


class Entity(NamedTuple):
    """The words [start, end) of a sentence."""

    type: str
    start: int
    end: int


class Counts(NamedTuple):
    """The entities in the labels, those predicted, and those in both."""

    labelled: int = 0
    predicted: int = 0
    correct: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums of both."""
        return Counts(*map(int.__add__, self, other))

    @property
    def scores(self) -> dict[str, float]:
        """``precision``, ``recall`` and ``f1``, from 0 to 1; 0 where there is nothing to count."""

        def share(part: int, whole: int) -> float:
            return part / whole if whole else 0.0

        return {
            "precision": share(self.correct, self.predicted),
            "recall": share(self.correct, self.labelled),
            "f1": share(2 * self.correct, self.labelled + self.predicted),
        }


def are_of_entities(labels: Iterable[str]) -> bool:
    """Whether labels mark entities: all but O have a prefix B, I, E or S, and some are not O."""
    marked = set(labels) - {OUTSIDE}
    return bool(marked) and all(map(_LABEL.fullmatch, marked))


def entities_of(labels: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in the schemes IOB1, IOB2 and IOBES or any mixture of them.

    An entity continues at a label with I or E, if the label before has B or I and the same type.
    Any other label with a prefix begins an entity, so none is lost where a model breaks its scheme.
    Labels without a prefix are outside.
    """
    found: list[Entity] = []
    before = "", ""
    for number, label in enumerate(labels):
        match = _LABEL.fullmatch(label)
        prefix, kind = (match["prefix"], match["type"] or ONLY_TYPE) if match else ("", "")
        if prefix in ("I", "E") and before[0] in ("B", "I") and before[1] == kind:
            found[-1] = found[-1]._replace(end=number + 1)
        elif match:
            found.append(Entity(kind, number, number + 1))
        before = prefix, kind
    return found


def count_entities(
    labelled: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, Counts]:
    """The counts of every type, sorted; both arguments are the labels of the same sentences."""
    counts: dict[str, Counts] = {}
    for of_labels, of_predictions in zip(labelled, predicted):
        known, found = set(entities_of(of_labels)), set(entities_of(of_predictions))
        for place, entities in enumerate((known, found, known & found)):
            for entity in entities:
                one = Counts(*(int(number == place) for number in range(3)))
                counts[entity.type] = counts.get(entity.type, Counts()).plus(one)
    return dict(sorted(counts.items()))


def total(counts: Iterable[Counts]) -> Counts:
    """The counts of all types together."""
    return Counts(*map(sum, zip(Counts(), *counts)))
