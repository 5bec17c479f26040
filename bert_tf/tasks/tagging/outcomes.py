"""What became of each entity: labelled and predicted ones are matched, and differences named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_tf.tasks.tagging.chunks import Entity

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
        return not same_words, one.type != other.type, -_words_in_common(one, other)

    left, free = set(labelled), set(predicted)
    found = []
    for one, other in sorted(_with_common_words(labelled, predicted), key=rank):
        if one in left and other in free:
            found.append(Match(one, other))
            left.remove(one)
            free.remove(other)
    found += [Match(one, None) for one in left]
    found += [Match(None, other) for other in free]
    return sorted(found, key=lambda match: min(entity.start for entity in match.entities))


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


def _words_in_common(one: Entity, other: Entity) -> int:
    return min(one.end, other.end) - max(one.start, other.start)
