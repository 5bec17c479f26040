"""Exports of every task give what the loaded model predicts, from ids and from strings."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf2  # the loader of SavedModels that users have

from bert_tf.serving.export import export_saved_model
from bert_tf.serving.load import load_model
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import open_trained
from bert_tf.tasks.classification.texts import LongTexts
from bert_tf.tasks.pretraining.mask_filler import encode_with_masks
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util.errors import UserError
from tests.helpers.model_records import classes_in, set_record
from tests.helpers.sentence_models import sentence_vectors, write_sentence_model
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY
from tests.helpers.small_task_models import CLASSES, WORD_LABELS, WRITERS, write_classifier

# Lengths differ, and some are longer than a sequence of 16 tokens.
TEXTS = ["Who wrote the book?", "anna", TEXT, "", "book, " * 20, "élan Anna\u200bs\ttown ."]
PAIRS = [(first, second) for first in TEXTS for second in TEXTS]
LONGEST = 50  # tokens, some more than the longest of these texts has
MASKED = ["The [MASK] by sea.", "[MASK]", f"{TEXT} [MASK] in the [MASK]", "[MASK][MASK] book"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Directories of a model of each task, each made once."""
    return functools.cache(lambda task: WRITERS[task](tmp_path_factory.mktemp("model")))


def export(directory, export_dir, **settings):
    """The signatures of an exported model, under their names; they are functions of arrays."""
    target = export_saved_model(
        open_trained(directory), ExportSettings(**settings), export_dir
    ).path
    loaded = tf2.saved_model.load(str(target))

    def call(signature, **inputs):
        assert loaded is not None  # it owns the variables
        found = loaded.signatures[signature](**{n: tf2.constant(v) for n, v in inputs.items()})
        arrays = {name: value.numpy() for name, value in found.items()}
        return {n: v.astype(str) if v.dtype == object else v for n, v in arrays.items()}

    call.extra = target / "assets.extra"
    return call


def with_strings(length=None):
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    return {"max_seq_length": length, "text_signature": True}


def ids_of(sequences, width):
    """Features of rows of ids without segments."""
    ids = np.zeros([len(sequences), width], np.int32)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def takes_any_shape(call):
    """Any batch of sequences of any length, up to ``LONGEST`` tokens."""
    for shape in ((1, 3), (4, LONGEST)):
        ids = np.full(shape, 4, np.int32)  # [MASK]
        found = call("serving_default", input_ids=ids, input_mask=ids // 4, segment_ids=ids * 0)
        assert {len(value) for value in found.values()} == {shape[0]}
    with pytest.raises(tf2.errors.InvalidArgumentError, match=f"longer than {LONGEST} tokens"):
        ids = np.full((1, LONGEST + 1), 4, np.int32)
        call("serving_default", input_ids=ids, input_mask=ids // 4, segment_ids=ids * 0)
    return True


def encoded(directory, texts):
    tokenizer = open_trained(directory).model.tokenizer
    rows = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    return ids_of(rows, max(map(len, rows)) + 3)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_classifier(tmp_path, kind):
    directory = write_classifier(tmp_path / "model", kind)
    call = export(directory, tmp_path / "export", max_seq_length=LONGEST)
    assert takes_any_shape(call)
    found = call("serving_default", **encoded(directory, TEXTS))
    expected = load_model(directory).predict(TEXTS)
    assert classes_in(call.extra) == CLASSES[kind]
    if kind == "rating":
        np.testing.assert_allclose(found["rating"], [one.rating for one in expected], atol=1e-5)
        return
    assert found["classes"].tolist() == [list(CLASSES[kind].labels)] * len(TEXTS)
    probabilities = [list(one.probabilities.values()) for one in expected]
    np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-5)
    if kind == "several":
        named = [tuple(row[chosen]) for row, chosen in zip(found["classes"], found["predicted"])]
        assert named == [one.labels for one in expected]
    else:
        assert found["label"].tolist() == [one.label for one in expected]
        assert found["classes"][0][found["label_id"][0]] == found["label"][0]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "long_texts",
    [
        "head",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("tail", "head_tail", "windows")
        ),
    ],
)
def test_a_classifier_from_strings(tmp_path, long_texts):
    directory = write_classifier(tmp_path / "model")
    kept = {"max_seq_length": 16, "long_texts": long_texts, "doc_stride": 4}
    set_record(directory, settings=kept)
    call = export(directory, tmp_path / "export", **with_strings())
    # Of several windows, only the first one is read.
    read = LongTexts("head" if long_texts == "windows" else long_texts)
    model = load_model(directory, long_texts=read)
    columns = dict(zip(("text", "other_text"), map(list, zip(*PAIRS))))
    for signature, texts, inputs in (
        ("text", TEXTS, {"text": TEXTS}),
        ("text_pair", PAIRS, columns),
    ):
        found = call(signature, **inputs)
        expected = [list(one.probabilities.values()) for one in model.predict(texts)]
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
        assert found["tokens_left_out"].max() > 0
    # Sequences of ids may still be as long as the network allows.
    assert call("serving_default", **encoded(directory, [TEXT]))["label"].shape == (1,)


def test_a_tagger(model_of, tmp_path):
    directory = model_of("tagging")
    call = export(directory, tmp_path / "export", max_seq_length=LONGEST)
    assert takes_any_shape(call)
    features = encoded(directory, ["anna wrote the book", "in a town by sea"])
    found = call("serving_default", **features)
    expected = load_model(directory).predict(["anna wrote the book", "in a town by sea"])
    for row, one in enumerate(expected):
        assert tuple(found["labels"][row, 1 : 1 + len(one.words)]) == one.labels
    is_token = features["input_mask"] > 0
    assert set(found["labels"][is_token]) <= set(WORD_LABELS)
    assert set(found["labels"][~is_token]) == {""}
    assert found["probabilities"][~is_token].max() == 0
    assert classes_in(call.extra).labels == WORD_LABELS


@pytest.mark.slow
def test_a_tagger_from_strings(model_of, tmp_path):
    directory = model_of("tagging")
    call = export(directory, tmp_path / "export", **with_strings(12))
    model = load_model(directory, max_seq_length=64)
    sentences = [text.split() for text in TEXTS]
    found = call("text", text=[" ".join(words) for words in sentences])
    for row, words in enumerate(sentences):
        read = len(words) - found["words_left_out"][row]
        labels = found["labels"][row]
        assert set(labels[read:]) <= {""}
        # What does not fit is not seen by the words before it.
        assert tuple(labels[:read]) == model.predict([words[:read]])[0].labels
        pieces = [len(model._tokenizer.encode(word)) or 1 for word in words]
        assert read == int((np.cumsum(pieces) <= 10).sum())
    assert found["words_left_out"].max() > 0
    assert found["probabilities"].shape == found["label_ids"].shape == found["labels"].shape


def test_masked_words(model_of, tmp_path):
    directory = model_of("masked_words")
    tokenizer = open_trained(directory).model.tokenizer
    rows = [encode_with_masks(text, tokenizer) for text in MASKED]
    call = export(directory, tmp_path / "export", top=3, max_seq_length=LONGEST)
    assert takes_any_shape(call)
    found = call("serving_default", **ids_of([*rows, [2, 5, 3]], 40))
    assert found["positions"][-1].tolist() == [-1, -1]
    assert set(found["words"][-1].ravel()) == {""}
    assert_guesses(found, load_model(directory).predict(MASKED, top=3))
    for row, ids in enumerate(rows):
        places = np.flatnonzero(np.array(ids) == tokenizer.mask_id)
        assert found["positions"][row, : len(places)].tolist() == places.tolist()
    none = call("serving_default", **ids_of([[2, 5, 3]], 3))
    assert none["words"].tolist() == [[[""] * 3]]


def assert_guesses(found, expected):
    for row, masks in enumerate(expected):
        for number, guesses in enumerate(masks):
            assert found["words"][row, number].tolist() == [guess.token for guess in guesses]
            probabilities = [guess.probability for guess in guesses]
            np.testing.assert_allclose(found["probabilities"][row, number], probabilities, 1e-3)


@pytest.mark.exhaustive
def test_masked_words_from_strings(model_of, tmp_path):
    directory = model_of("masked_words")
    call = export(directory, tmp_path / "export", **with_strings(), top=4)
    found = call("text", text=[*MASKED, "no mask"])
    assert_guesses(found, load_model(directory).predict(MASKED, top=4))
    assert found["positions"][-1].tolist() == [-1, -1]
    assert found["tokens_left_out"].tolist() == [0] * 5
    cut = export(directory, tmp_path / "cut", **with_strings(8))("text", text=MASKED)
    assert cut["positions"][2].tolist() == [-1, -1]
    assert cut["tokens_left_out"][2] > 0


@pytest.mark.parametrize(
    "settings",
    [
        VectorSettings("mean"),
        VectorSettings("cls", normalize=True),
        pytest.param(VectorSettings("max", (0, -1)), marks=pytest.mark.slow),
    ],
)
def test_vectors(model_of, tmp_path, settings):
    directory = model_of("vectors")
    call = export(directory, tmp_path / "export", vectors=settings, max_seq_length=LONGEST)
    assert takes_any_shape(call)
    expected = load_model(directory, settings=settings).predict(TEXTS)
    found = call("serving_default", **encoded(directory, TEXTS))
    np.testing.assert_allclose(found["vectors"], expected, atol=2e-5)


def test_vectors_of_a_model_of_sentence_transformers(tmp_path):
    prompts = {"prompts": {"query": "w1 "}, "default_prompt_name": "query"}
    dense = [(7, "activation.Tanh")]
    directory = write_sentence_model(
        tmp_path / "model", pooling=("mean", "max"), dense=dense, normalize=True, prompts=prompts
    )
    call = export(directory, tmp_path / "export")
    texts = ["w3 w4", "w5"]
    found = call("serving_default", **ids_of([[2, 6, 8, 9, 3], [2, 6, 10, 3]], 5))["vectors"]
    np.testing.assert_allclose(found, sentence_vectors(directory, texts, prompt="w1 "), atol=1e-5)


@pytest.mark.exhaustive
def test_a_prompt_in_a_signature_for_texts(tmp_path):
    prompts = {"prompts": {"query": "w1 "}, "default_prompt_name": "query"}
    directory = write_sentence_model(tmp_path / "model", prompts=prompts)
    found = export(directory, tmp_path / "export", **with_strings())("text", text=["w3 w4"])
    expected = sentence_vectors(directory, ["w3 w4"], prompt="w1 ")
    np.testing.assert_allclose(found["vectors"], expected, atol=1e-5)


def test_questions(model_of, tmp_path):
    directory = model_of("question_answering")
    call = export(directory, tmp_path / "export", n_best_size=3, max_seq_length=LONGEST)
    assert takes_any_shape(call)
    found = call("with_unique_ids", unique_ids=[7], **encoded(directory, [TEXT]))
    assert found["top_start_indices"].shape == (1, 3)
    assert found["unique_ids"].tolist() == [7]


def test_unpooled_vectors_cannot_be_exported(model_of, tmp_path):
    with pytest.raises(UserError, match="--pooling=none gives texts of different lengths"):
        export(model_of("vectors"), tmp_path / "export", vectors=VectorSettings("none"))


def test_lengths_of_questions(model_of, tmp_path):
    with pytest.raises(UserError, match="--max_seq_length=64 leaves no room"):
        export(
            model_of("question_answering"),
            tmp_path / "export",
            max_query_length=62,
            text_signature=True,
        )


def test_a_vocabulary_that_is_smaller_than_the_network(tmp_path):
    """The surplus outputs are never among the words."""
    from tests.helpers.forward_passes import pretraining_specs
    from tests.helpers.small_span_model import write_weights

    config = dataclasses.replace(CONFIG, vocab_size=len(VOCABULARY) + 9)
    specs = pretraining_specs(config, next_sentence=False)
    directory = write_weights(tmp_path / "model", specs, config)
    call = export(directory, tmp_path / "export", top=len(VOCABULARY) + 5)
    found = call("serving_default", **ids_of([[2, 4, 3]], 3))
    assert sorted(found["words"][0, 0].tolist()) == sorted(VOCABULARY)


def test_a_length_without_room_for_a_word():
    with pytest.raises(UserError, match="--max_seq_length=2 must be at least 3"):
        ExportSettings(max_seq_length=2)
