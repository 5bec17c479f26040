"""Tokenization in the graph gives the ids of the tokenizer; skipped without tensorflow-text."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.question_answering import text_signature as export_text
from bert_tf.tasks.question_answering.export import export_squad
from bert_tf.tasks.question_answering.paragraphs import sequence_arrays
from bert_tf.tasks.question_answering.windows import WindowSettings, question_windows
from bert_tf.text.tokenizer_files import load_tokenizer
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT
from tests.helpers.small_span_model import TEXT, predictor_of, write_model

GOLDEN = ROOT / "tests/data/google_tokenizer_golden.json"


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def encoders(request, golden, tmp_path_factory):
    """The tokenizer of the golden vocabulary, and a function of texts made of graph operations."""
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in golden["vocabulary"]), encoding="utf-8")
    tokenizer = load_tokenizer(vocab_file=path, do_lower_case=request.param)
    graph = tf.Graph()
    with graph.as_default():
        texts = tf.placeholder(tf.string, [None])
        ids = export_text.GraphTokenizer(tokenizer).encode(texts)
    session = tf.Session(graph=graph)
    yield tokenizer, lambda batch: session.run(ids, {texts: batch}).to_list()
    session.close()


@pytest.mark.slow
def test_golden_cases(encoders, golden):
    tokenizer, in_graph = encoders
    key = "ids_uncased" if tokenizer.lower_case else "ids_cased"
    texts = [case["text"] for case in golden["cases"]]
    assert in_graph(texts) == [tokenizer.encode(text) for text in texts]
    assert in_graph(texts) == [case[key] for case in golden["cases"]]


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"])), min_size=1, max_size=20))
@settings(deadline=None, max_examples=200)
def test_any_text(encoders, texts):
    tokenizer, in_graph = encoders
    assert in_graph(texts) == [tokenizer.encode(text) for text in texts]


def test_many_characters(encoders):
    """One of 31 characters, alone, inside a word and in front of one."""
    tokenizer, in_graph = encoders
    characters = [chr(c) for c in range(0, 0x110000, 31) if not 0xD800 <= c < 0xE000]
    texts = [f"a{c}b {c} {c}S" for c in characters]
    assert in_graph(texts) == [tokenizer.encode(text) for text in texts]


def test_long_words(encoders):
    tokenizer, in_graph = encoders
    texts = ["x" * n for n in (199, 200, 201, 1500)] + ["é" * 200, "e" * 201 + " the"]
    assert in_graph(texts) == [tokenizer.encode(text) for text in texts]


def test_signature_from_strings(tmp_path):
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    import tensorflow as tf2

    parts = find_model(write_model(tmp_path / "model"))
    windows = WindowSettings(max_seq_length=24, max_query_length=6)
    target = export_squad(parts, tmp_path / "squad", text_windows=windows)
    loaded = tf2.saved_model.load(str(target))
    questions = ["Who wrote the book?", "Where did she live in town by the sea?", ""]
    contexts = [TEXT, "Anna", "by the sea"]
    found = loaded.signatures["text"](
        question=tf2.constant(questions), context=tf2.constant(contexts)
    )
    found = {name: value.numpy() for name, value in found.items()}

    model = predictor_of(parts, native_ops=False)
    for row, (question, context) in enumerate(zip(questions, contexts)):
        ids = parts.tokenizer.encode(context)
        first, *_ = question_windows(parts.tokenizer.encode(question), len(ids), windows)
        features = sequence_arrays([(first, ids)], parts.tokenizer, first.length)
        for name, expected in features.items():
            padding = [(0, 0), (0, found[name].shape[1] - first.length)]
            np.testing.assert_array_equal(found[name][row : row + 1], np.pad(expected, padding))
        start = found["start_logits"][row, : first.length]
        np.testing.assert_allclose(start, model.run(features)["start_logits"][0], atol=1e-5)
        assert found["tokens_left_out"][row] == len(ids) - first.num_tokens
    assert found["tokens_left_out"][0] > 0


def test_without_the_library_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(export_text.importlib, "import_module", missing)
    parts = find_model(write_model(tmp_path / "model"))
    with pytest.raises(UserError, match="pip install --no-deps tensorflow-text"):
        export_squad(parts, tmp_path / "squad", text_windows=WindowSettings(64, 8, 8))
    assert not list((tmp_path / "squad").iterdir())
