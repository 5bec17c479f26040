"""Tokenization in the graph gives the ids of the tokenizer; skipped without tensorflow-text."""

import json

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.inference.graph_tokenizer import GraphTokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT

GOLDEN = ROOT / "tests/data/google_tokenizer_golden.json"


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(
    scope="module",
    params=[(True, None), (False, None), (True, False), (False, True)],
    ids=["uncased", "cased", "with-accents", "cased-without-accents"],
)
def encoders(request, golden, tmp_path_factory):
    """The tokenizer of the golden vocabulary, and a function of texts made of graph operations."""
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in golden["vocabulary"]), encoding="utf-8")
    tokenizer = TokenizerFiles(path, None, *request.param).load()
    graph = tf.Graph()
    with graph.as_default():
        texts = tf.placeholder(tf.string, [None])
        ids = GraphTokenizer(tokenizer).encode(texts)
    session = tf.Session(graph=graph)
    yield tokenizer, lambda batch: session.run(ids, {texts: batch}).to_list()
    session.close()


def test_golden_cases(encoders, golden):
    tokenizer, in_graph = encoders
    key = "ids_uncased" if tokenizer.lower_case else "ids_cased"
    texts = [case["text"] for case in golden["cases"]]
    assert in_graph(texts) == [tokenizer.encode(text) for text in texts]
    if tokenizer.strip_accents is None:  # as google's
        assert in_graph(texts) == [case[key] for case in golden["cases"]]


def test_other_rules_are_refused_by_name(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    tokenizer = TokenizerFiles.in_directory(tmp_path).load()
    with pytest.raises(UserError, match=r"BERT's own rules, .* of the kind tokenizer\.json; leave"):
        GraphTokenizer(tokenizer)


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
