"""Scores of entities, compared with seqeval, whose default mode is conlleval's definition too."""

import collections
import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_tf.finetune.scores import Counts
from bert_tf.tasks.tagging.chunks import (
    OUTCOMES,
    Entity,
    Match,
    are_of_entities,
    count_entities,
    entities_of,
    match_entities,
    total,
    without_prefix,
    without_type,
)

TYPES = ["PER", "LOC-x", "A"]
LABELS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in TYPES)]


@st.composite
def sentences_with_predictions(draw, labels):
    """Lists of the labels of sentences, and of equally many others."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    label = st.sampled_from(labels)
    return [[[draw(label) for _ in range(length)] for length in lengths] for _ in range(2)]


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    st.one_of(
        sentences_with_predictions(LABELS),
        sentences_with_predictions(["O", "B-PER", "I-PER", "I-A"]),
        sentences_with_predictions(["O", "B", "I"]),
    )
)
@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_seqeval(both):
    """On any mixture of schemes, with labels that break them."""
    metrics = pytest.importorskip("seqeval.metrics")
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    labelled, predicted = both
    for labels in (*labelled, *predicted):
        expected = [(kind, first, last + 1) for kind, first, last in entities(labels)]
        assert entities_of(labels) == expected
    counts = count_entities(labelled, predicted)
    found = total(counts.values()).scores
    for name in ("precision", "recall", "f1"):
        score = getattr(metrics, f"{name}_score")
        assert found[name] == pytest.approx(score(*both, zero_division=0))
    report = metrics.classification_report(*both, output_dict=True, zero_division=0)
    report = {kind: row for kind, row in report.items() if not kind.endswith(" avg")}
    assert list(counts) == sorted(report)
    for kind, row in report.items():
        assert counts[kind].labelled == row["support"]
        assert counts[kind].scores == pytest.approx(
            {"precision": row["precision"], "recall": row["recall"], "f1": row["f1-score"]}
        )


def test_words_of_characters():
    """The labels of word segmentation, which have no types."""
    expected = [("_", 0, 3), ("_", 3, 4), ("_", 4, 6)]
    for labels in ("BMESBE", "BILUBL", "BIESBE"):
        assert entities_of(list(labels)) == expected


# The prefixes of the first, inner, last and only word of an entity.
PREFIXES = {"IOBES": "BIES", "BMES": "BMES", "BILOU": "BILU"}


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(both=sentences_with_predictions(LABELS), scheme=st.sampled_from(list(PREFIXES)))
@pytest.mark.filterwarnings("ignore")
def test_schemes_with_other_letters(both, scheme):
    """Labels written in a scheme, whether they keep its rules or not, have IOBES's entities."""
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    letters = str.maketrans("BIES", PREFIXES[scheme])
    for labels in (sentence for side in both for sentence in side):
        written = [label[0].translate(letters) + label[1:] for label in labels]
        expected = [(kind, first, last + 1) for kind, first, last in entities(labels)]
        assert entities_of(written) == expected


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(["", *TYPES]), st.integers(1, 4)), min_size=1, max_size=8)
)
def test_entities_of_bilou_and_iobes_are_those_of_seqevals_schemes(parts):
    """Its strict readers of each scheme, on labels that keep the rules."""
    schemes = pytest.importorskip("seqeval.scheme")
    for scheme, (first, inner, last, only) in PREFIXES.items():
        labels = []
        for kind, length in parts:
            prefixes = only if length == 1 else first + inner * (length - 2) + last
            labels += [f"{prefix}-{kind}" if kind else "O" for prefix in prefixes]
        found = entities_of(labels)
        starts = itertools.accumulate((length for _, length in parts), initial=0)
        expected = [(k, s, s + length) for (k, length), s in zip(parts, starts) if k]
        assert found == expected
        if scheme != "BMES":  # which it lacks
            read = schemes.Entities([labels], getattr(schemes, scheme)).entities[0]
            assert found == [entity.to_tuple()[1:] for entity in read]


def test_entities_end_with_their_sentence():
    both = [["I-PER"], ["I-PER"]]
    assert count_entities(both, [["I-PER"], ["O"]]) == {"PER": Counts(2, 1, 1)}


def test_nothing_to_count():
    assert count_entities([["O"]], [["X"]]) == {}
    assert total([]).scores == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["O", "B", "I"], True),
        (["S-A-b"], True),
        (["O"], False),
        (["NN", "O"], False),
        (["B-PER", "X"], False),
        (["L-PER", "B-PER", "U-PER"], True),
        (["B", "M", "E", "S"], True),
        (["W-PER", "B-PER"], False),
        (["B-"], False),
    ],
)
def test_labels_of_entities(labels, expected):
    assert are_of_entities(labels) == expected


@pytest.mark.parametrize(
    ("labels", "untyped", "unprefixed"),
    [
        (["B-PER", "I-PER", "O"], set(), set()),
        (["B", "I", "O"], set(), set()),
        (["B-PER", "I", "O"], {"I"}, set()),
        (["B-PER", "I-PER", "O", "X", "b-LOC"], set(), {"X", "b-LOC"}),
        (["B-PER", "M-PER", "L", "O"], {"L"}, set()),
        (["NN", "VBZ", "O"], set(), set()),
        (["I", "NN"], set(), set()),
    ],
)
def test_labels_that_do_not_fit_the_others(labels, untyped, unprefixed):
    assert (without_type(labels), without_prefix(labels)) == (untyped, unprefixed)


SHORT = ["O", "B-A", "I-A", "B-B", "I-B"]


def overlap(one, other):
    return one.start < other.end and other.start < one.end


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(sentences_with_predictions(SHORT))
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
