"""What is said of texts that a model does not know."""

from pathlib import Path

import pytest

from bert_tf.inference.unknown_hint import with_unknown_hint
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.vocabulary import write_vocab_file

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "film", "of", "the", "river"]]


@pytest.fixture
def tokenizer(tmp_path):
    write_vocab_file(tmp_path / "vocab.txt", ENTRIES)
    files = TokenizerFiles(tmp_path / "vocab.txt", do_lower_case=True)
    return with_unknown_hint(CompleteModel(Path("model"), None, files.load(), files)).tokenizer


def test_a_hint_is_said_once(tokenizer, capsys):
    tokenizer.encode("영화가")
    tokenizer.encode_with_offsets("영화가 a film of the river")
    assert not capsys.readouterr().err
    for _ in range(100):
        tokenizer.encode("영화가 a film of the river")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: model: of its texts, 1")
    assert "'영화가' (" in line


def test_a_rare_unknown_word_is_no_hint(tokenizer, capsys):
    for number in range(2000):
        tokenizer.encode("a film of the river " + ("石" if number % 50 == 0 else "film"))
    assert not capsys.readouterr().err
