"""A model directory of any task, loaded in a program."""

import numpy as np
import pytest

from bert_tf.serving.load import load_model
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util.errors import UserError
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY
from tests.helpers.small_task_models import CLASSES, WORD_LABELS, WRITERS, write_classifier


def load(tmp_path, task, **settings):
    return load_model(WRITERS[task](tmp_path / task), **settings)


def test_classification(tmp_path):
    texts = ["Who wrote the book?", ("in a town", "by sea"), "", "who " * 100]
    model = load(tmp_path, "classification")
    found = model.predict(texts)
    assert [one.label for one in found] == [max(p, key=p.get) for p in _probabilities(found)]
    assert all(list(p) == ["good", "bad", "neither"] for p in _probabilities(found))
    assert [sum(p.values()) for p in _probabilities(found)] == pytest.approx([1] * 4)
    assert found[0].probability == max(found[0].probabilities.values())
    # Texts of other lengths in the same batch change nothing.
    for text, one in zip(texts, found):
        [alone] = model.predict([text])
        assert alone.probabilities == pytest.approx(one.probabilities, abs=1e-5)
    assert model.predict([]) == []
    model.close()


def _probabilities(found):
    return [one.probabilities for one in found]


def test_several_classes_per_text(tmp_path):
    texts = [f"{word} book" for word in VOCABULARY[5:]]
    found = load_model(write_classifier(tmp_path, "several")).predict(texts)
    threshold = CLASSES["several"].thresholds[0]
    for one in found:
        assert one.labels == tuple(n for n, p in one.probabilities.items() if p >= threshold)
        assert one.label == (one.labels[0] if len(one.labels) == 1 else None)
    assert len({len(one.labels) for one in found}) > 1, "the test would not notice a difference"


def test_ratings(tmp_path):
    [found] = load_model(write_classifier(tmp_path, "rating")).predict(["Who wrote the book?"])
    assert (found.labels, found.probabilities) == ((), {})
    assert (found.label, found.probability) == (None, None)
    assert isinstance(found.rating, float)


def test_multiple_choice(tmp_path):
    model = load(tmp_path, "multiple_choice")
    questions = [
        {"context": "Anna lived by sea.", "choices": ["She wrote.", "She lived in a town.", ""]},
        {"context": "who", "question": "In _ , who wrote?", "choices": ("a town", "1843")},
    ]
    found = model.predict(questions)
    for question, one in zip(questions, found):
        assert one.choice == question["choices"][one.number]
        assert len(one.probabilities) == len(question["choices"])
        assert sum(one.probabilities) == pytest.approx(1)
        assert one.probabilities[one.number] == max(one.probabilities)
    assert model.predict(questions[1:])[0].probabilities == pytest.approx(found[1].probabilities)
    assert model.predict([]) == []


def test_tagging_text_and_words(tmp_path):
    model = load(tmp_path, "tagging", max_seq_length=12)
    [text, words, empty] = model.predict(["It's Anna, in a town.", ["It", "s", "Anna"], []])
    assert text.words == ("It", "'", "s", "Anna", ",", "in", "a", "town", ".")
    assert len(text.labels) == len(text.words)
    assert set(text.labels) <= set(WORD_LABELS)
    for entity in text.entities:
        assert "It's Anna, in a town."[entity.start : entity.end] == entity.text
    assert (words.words, len(words.labels)) == (("It", "s", "Anna"), 3)
    assert (empty.words, empty.labels, empty.entities) == ((), (), ())
    assert model.predict([]) == []


def test_a_long_sentence_is_tagged_in_overlapping_windows(tmp_path):
    """Ten words fit: of words 0-9, 5-14 and 10-19 each window labels those it has in its middle."""
    model = load(tmp_path, "tagging", max_seq_length=12)
    words = [entry for entry in VOCABULARY[5:] if entry.isalpha()]
    sentence = [words[(7 * number) % len(words)] for number in range(20)]
    first, second, third = model.predict([sentence[:10], sentence[5:15], sentence[10:]])
    [found] = model.predict([sentence])
    assert found.labels == first.labels[:8] + second.labels[3:8] + third.labels[3:]
    assert len(set(found.labels)) > 1, "the test would not notice a difference"


def test_entities_are_those_of_the_labels(tmp_path):
    model = load(tmp_path, "tagging")
    sentences = [[word, "wrote", "the", "book", "in", word] for word in VOCABULARY[5:]]
    kinds = {"LOC": 0, "PER": 0}
    for found in model.predict(sentences):
        starts = [n for n, label in enumerate(found.labels) if label.startswith("B-")]
        joined = " ".join(found.words)
        first = [len(" ".join([*found.words[:n], ""])) for n in starts]
        assert set(first) <= {entity.start for entity in found.entities}
        for entity in found.entities:
            assert joined[entity.start : entity.end] == entity.text
            kinds[entity.type] += 1
    assert sum(kinds.values()) > 0


def test_question_answering(tmp_path):
    model = load(tmp_path, "question_answering")
    questions = [("Who wrote the book?", TEXT), ("Where did she live?", TEXT)]
    found = model.predict(questions)
    assert found == [model.answer(*question) for question in questions]
    assert all(TEXT[one[0].start : one[0].end] == one[0].text for one in found)


def test_masked_words(tmp_path):
    [[first, second]] = load(tmp_path, "masked_words").predict(["The [MASK] by the [MASK]."], top=3)
    assert len(first) == len(second) == 3
    assert {guess.token for guess in (*first, *second)} <= set(VOCABULARY)


def test_vectors(tmp_path):
    found = load(tmp_path, "vectors").predict(["Anna", "Who wrote the book?"])
    assert np.shape(found) == (2, CONFIG.hidden_size)
    unpooled = load(tmp_path, "vectors", settings=VectorSettings("none", (-1,)))
    tokens, _ = unpooled.predict(["Anna", "Who wrote the book?"])
    np.testing.assert_allclose(tokens[:, 0].mean(axis=0), found[0], atol=1e-5)


def test_another_task_and_settings(tmp_path):
    directory = WRITERS["classification"](tmp_path)
    model = load_model(directory, task="vectors", settings=VectorSettings("cls", normalize=True))
    assert np.linalg.norm(model.predict(["Anna"])[0]) == pytest.approx(1, abs=1e-6)


def test_an_unknown_precision(tmp_path):
    with pytest.raises(UserError, match="--precision=fp8"):
        load(tmp_path, "vectors", precision="fp8")


def test_too_long_for_the_network(tmp_path):
    with pytest.raises(UserError, match="--max_seq_length=65 is more than the model's"):
        load(tmp_path, "classification", max_seq_length=65)


@pytest.mark.parametrize("task", ["classification", "tagging", "vectors"])
def test_a_text_in_place_of_a_list(tmp_path, task):
    with pytest.raises(UserError, match="'Anna wrote' is a text, and a list of inputs is needed"):
        load(tmp_path, task).predict("Anna wrote")


@pytest.mark.parametrize("task", ["classification", "vectors"])
def test_more_than_a_pair(tmp_path, task):
    with pytest.raises(UserError, match="has 3 parts; give a text, or a pair"):
        load(tmp_path, task).predict([("Anna", "wrote", "it")])


def test_empty_batches(tmp_path):
    with pytest.raises(UserError, match="--batch_size=0 must be at least 1"):
        load(tmp_path, "classification", batch_size=0)


@pytest.mark.parametrize(
    ("task", "inputs", "sentence"),
    [
        ("vectors", [None], "None is not a text, or a pair of texts; give strings"),
        ("vectors", ["Anna", ("Anna", 5)], r"\('Anna', 5\) is not a text, or a pair of texts"),
        ("vectors", None, "None is no list, and a list of inputs is needed"),
        ("classification", [b"Anna"], "b'Anna' is not a text, or a pair"),
        ("classification", {"text": "Anna"}, "is no list, and a list of inputs is needed"),
        ("classification", [float("nan")], "nan is not a text"),
        ("tagging", [None], "None is not a sentence, or a list of its words"),
        ("tagging", [["Anna", None]], r"\['Anna', None\] is not a sentence, or a list"),
        ("multiple_choice", ["Who?"], 'question 1 needs a text "context" and two texts or more'),
        ("question_answering", ["Who wrote it?"], "is not a question with its text; give such"),
        ("question_answering", [("Who?", None)], "is not a text, or a pair of texts"),
        ("masked_words", "The [MASK]", "is a text, and a list of inputs is needed"),
        ("masked_words", [None], "None is not a text; give strings"),
    ],
)
def test_inputs_that_are_no_texts_are_one_sentence(tmp_path, task, inputs, sentence):
    with pytest.raises(UserError, match=sentence):
        load(tmp_path, task).predict(inputs)


def test_inputs_of_other_kinds_of_lists(tmp_path):
    model = load(tmp_path, "classification")
    expected = model.predict(["Anna", "book"])
    assert model.predict(np.array(["Anna", "book"])) == expected
    assert model.predict(text for text in ("Anna", "book")) == expected


def test_a_directory_without_a_model(tmp_path):
    with pytest.raises(
        UserError, match=r"has no bert_config\.json or config\.json; load_model takes"
    ):
        load_model(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(UserError, match=r"is an exported SavedModel, .*load_model takes the model"):
        load_model(tmp_path)


def test_texts_of_another_language_are_warned_of(tmp_path, capsys):
    load(tmp_path, "vectors").predict(["Anna wrote", "영화가 아주 좋다"] * 20)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "unknown" in line]
    assert "tokens are unknown to the vocabulary ([UNK]), most often '영화가'" in line
