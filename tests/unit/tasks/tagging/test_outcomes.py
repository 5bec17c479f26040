"""Matches of labelled and predicted entities, with the properties that define them."""

import collections

import hypothesis
import pytest

from bert_tf.tasks.tagging.chunks import (
    OUTCOMES,
    Entity,
    Match,
    count_entities,
    entities_of,
    match_entities,
    total,
)
from tests.unit.tasks.tagging.test_chunks import sentences_with_predictions

LABELS = ["O", "B-A", "I-A", "B-B", "I-B"]


def overlap(one, other):
    return one.start < other.end and other.start < one.end


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(sentences_with_predictions(LABELS))
def test_every_entity_is_in_one_match(both):
    correct = 0
    for labels, predictions in zip(*both):
        labelled, predicted = entities_of(labels), entities_of(predictions)
        matches = match_entities(labelled, predicted)
        assert sorted(m.labelled for m in matches if m.labelled) == sorted(labelled)
        assert sorted(m.predicted for m in matches if m.predicted) == sorted(predicted)
        missed = [m.labelled for m in matches if m.predicted is None]
        spurious = [m.predicted for m in matches if m.labelled is None]
        assert not any(overlap(one, other) for one in missed for other in spurious)
        assert all(overlap(*match) for match in matches if None not in match)
        starts = [min(entity.start for entity in match.entities) for match in matches]
        assert starts == sorted(starts)
        correct += sum(match.outcome == "correct" for match in matches)
    assert correct == total(count_entities(*both).values()).correct


@pytest.mark.parametrize(
    ("labels", "predictions", "outcomes"),
    [
        ("B-A I-A O B-B", "B-A I-A O B-B", ["correct", "correct"]),
        ("B-A I-A O O", "B-A O O B-B", ["wrong boundaries", "spurious"]),
        ("B-A I-A O O", "B-B I-B O O", ["wrong type"]),
        ("B-A I-A O O", "B-B O O O", ["wrong type"]),
        ("B-A I-A B-A I-A", "O O O O", ["missed", "missed"]),
        # The same words are matched before another part of the type.
        ("B-A I-A I-A O", "B-A B-B I-B O", ["wrong boundaries", "spurious"]),
        ("B-A B-B O O", "B-A I-A O O", ["wrong boundaries", "missed"]),
        ("O B-A O O", "B-B I-B I-B O", ["wrong type"]),
    ],
)
def test_outcomes(labels, predictions, outcomes):
    matches = match_entities(*(entities_of(text.split()) for text in (labels, predictions)))
    assert [match.outcome for match in matches] == outcomes
    assert set(outcomes) <= OUTCOMES.keys()


def test_the_same_words_come_before_the_same_type_and_that_before_more_words():
    long, short, other = Entity("A", 0, 3), Entity("A", 0, 1), Entity("B", 1, 3)
    assert match_entities([long], [short, other]) == [Match(long, short), Match(None, other)]
    same = Entity("B", 0, 3)
    assert match_entities([long], [same]) == [Match(long, same)]
    counted = collections.Counter(m.outcome for m in match_entities([short, other], [long]))
    assert counted == {"wrong boundaries": 1, "missed": 1}
