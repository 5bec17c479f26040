"""Entities in labelled sentences, counted and scored as conlleval does, and matched.

conlleval is the program that scores CoNLL's shared tasks on chunks and names (Tjong Kim Sang and
Buchholz 2000; Tjong Kim Sang and De Meulder 2003): a predicted entity is correct if the labels have
one of the same type with the same first and last word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Callable, NamedTuple

from bert_tf.finetune.scores import Counts

OUTSIDE = "O"
# The type of entities whose labels consist of a prefix only.
ONLY_TYPE = "_"

_LABEL = re.compile(r"(?P<prefix>[BIESMLU])(?:-(?P<type>.+))?")
# Prefixes of BMES and BILOU, and those of IOBES with the same meaning.
_AS_IOBES = {"M": "I", "L": "E", "U": "S"}

# What became of an entity.
CORRECT, WRONG_BOUNDARIES, WRONG_TYPE, MISSED, SPURIOUS = (
    "correct",
    "wrong boundaries",
    "wrong type",
    "missed",
    "spurious",
)
OUTCOMES = {
    CORRECT: "the words and the type are right",
    WRONG_BOUNDARIES: "the type is right, and some of the words",
    WRONG_TYPE: "another type, at some or all of the words",
    MISSED: "in the labels only",
    SPURIOUS: "in the predictions only",
}


class Entity(NamedTuple):
    """An entity: its type, and its words [start, end) in a sentence."""

    type: str
    start: int
    end: int


def are_of_entities(labels: Iterable[str]) -> bool:
    """Whether labels mark entities: not all are O, and the others have a prefix of a scheme."""
    marked = set(labels) - {OUTSIDE}
    return bool(marked) and all(map(_LABEL.fullmatch, marked))


def without_type(labels: Iterable[str]) -> set[str]:
    """The labels that consist of a prefix only, if others have a type after it."""
    matches = [match for label in labels if (match := _LABEL.fullmatch(label))]
    untyped = {match[0] for match in matches if not match["type"]}
    return untyped if len(untyped) < len(matches) else set()


def without_prefix(labels: Collection[str]) -> set[str]:
    """The labels other than O without a prefix, if others have a prefix and a type."""
    matches = [match for label in labels if (match := _LABEL.fullmatch(label))]
    if not any(match["type"] for match in matches):
        return set()
    return set(labels) - {OUTSIDE, *(match[0] for match in matches)}


def entities_of(labels: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, labelled with IOB, IOE, IOBES, BMES, BILOU or a mixture of them.

    M, L and U are read as I, E and S. An I or E label continues the current entity if the previous
    label has prefix B or I and the same type. Any other label with a prefix starts an entity, so
    that none is lost where a model breaks its scheme. Labels without a prefix are outside of
    entities.
    """
    entities: list[Entity] = []
    before = "", ""
    for number, label in enumerate(labels):
        match = _LABEL.fullmatch(label)
        prefix, kind = (match["prefix"], match["type"] or ONLY_TYPE) if match else ("", "")
        prefix = _AS_IOBES.get(prefix, prefix)
        if prefix in ("I", "E") and before[0] in ("B", "I") and before[1] == kind:
            entities[-1] = entities[-1]._replace(end=number + 1)
        elif match:
            entities.append(Entity(kind, number, number + 1))
        before = prefix, kind
    return entities


def words_as_entities(labels: Sequence[str]) -> list[Entity]:
    """Every word of a sentence as an entity whose type is its label, such as a part of speech."""
    return [Entity(label, number, number + 1) for number, label in enumerate(labels)]


def count_entities(
    labelled: Iterable[Sequence[str]],
    predicted: Iterable[Sequence[str]],
    *,
    find: Callable[[Sequence[str]], list[Entity]] = entities_of,
) -> dict[str, Counts]:
    """The counts of every type, sorted by type; the arguments label the same sentences.

    ``find`` returns the entities of a sentence.
    """
    tally: Counter[tuple[str, int]] = Counter()
    for of_labels, of_predictions in zip(labelled, predicted):
        true, guessed = set(find(of_labels)), set(find(of_predictions))
        for place, entities in enumerate((true, guessed, true & guessed)):
            tally.update((entity.type, place) for entity in entities)
    types = sorted({kind for kind, _ in tally})
    return {kind: Counts(*(tally[kind, place] for place in range(3))) for kind in types}


def total(counts: Iterable[Counts]) -> Counts:
    """The counts summed over all types."""
    return Counts(*map(sum, zip(Counts(), *counts)))


class Match(NamedTuple):
    """An entity of the labels and the one predicted in its place; None if there is none."""

    labelled: Entity | None
    predicted: Entity | None

    @property
    def outcome(self) -> str:
        """A key of ``OUTCOMES``."""
        if self.labelled is None:
            return SPURIOUS
        if self.predicted is None:
            return MISSED
        if self.labelled == self.predicted:
            return CORRECT
        return WRONG_BOUNDARIES if self.labelled.type == self.predicted.type else WRONG_TYPE

    @property
    def entities(self) -> list[Entity]:
        """The labelled and the predicted entity, where they exist."""
        return [entity for entity in self if entity is not None]


def match_entities(labelled: Sequence[Entity], predicted: Sequence[Entity]) -> list[Match]:
    """Matches the entities of a sentence, in the order of their first words.

    An entity has at most one partner, with which it shares a word. The same words come first, then
    the same type, then more words in common, then the order in the sentence.
    """

    def rank(pair: tuple[Entity, Entity]) -> tuple[bool, bool, int]:
        one, other = pair
        same_words = (one.start, one.end) == (other.start, other.end)
        common = min(one.end, other.end) - max(one.start, other.start)
        return not same_words, one.type != other.type, -common

    left, free = set(labelled), set(predicted)
    matches = []
    for one, other in sorted(_with_common_words(labelled, predicted), key=rank):
        if one in left and other in free:
            matches.append(Match(one, other))
            left.remove(one)
            free.remove(other)
    matches += [Match(one, None) for one in left]
    matches += [Match(None, other) for other in free]
    return sorted(matches, key=lambda match: min(entity.start for entity in match.entities))


def _with_common_words(
    labelled: Sequence[Entity], predicted: Sequence[Entity]
) -> Iterator[tuple[Entity, Entity]]:
    """The pairs of entities that share words, in the order of the sentence.

    Both arguments are in that order and free of overlaps, so the time is linear: a file without
    blank lines is a single sentence.
    """
    first = 0
    for one in labelled:
        while first < len(predicted) and predicted[first].end <= one.start:
            first += 1
        for number in range(first, len(predicted)):
            if predicted[number].start >= one.end:
                break
            yield one, predicted[number]
