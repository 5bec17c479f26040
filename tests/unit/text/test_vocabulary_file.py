"""vocab.txt: what is read, what is refused."""

from __future__ import annotations

import hashlib

import pytest

from bert_tf.text.tokenizer_files import load_tokenizer
from bert_tf.text.vocabulary import (
    SPECIAL_TOKENS,
    is_cased,
    read_vocab_file,
    write_vocab_file,
)
from bert_tf.util.errors import UserError

SPECIAL_LINES = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb \r\n", ["a", "b"]),
        ("a\n\u2028\n##\u2028\nb\u00e9\n".encode(), ["a", "", "##", "b\u00e9"]),
        ("a\x85b\n".encode(), ["a\x85b"]),
    ],
)
def test_reading(tmp_path, content, entries):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    assert read_vocab_file(path) == entries


def test_written_file_is_read_back(tmp_path):
    entries = [*SPECIAL_TOKENS, "a", "##\u00e9", "\u4e2d"]
    write_vocab_file(tmp_path / "vocab.txt", entries)
    assert read_vocab_file(tmp_path / "vocab.txt") == entries
    content = (tmp_path / "vocab.txt").read_bytes()
    tokenizer = load_tokenizer(vocab_file=tmp_path / "vocab.txt")
    assert tokenizer.vocab_sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "vocab.txt is empty"),
        (SPECIAL_LINES + b"a\n\nb\n", "line 7 is blank"),
        (SPECIAL_LINES + b"a\n\n", "line 7 is blank"),
        (SPECIAL_LINES + b"a\nb\na\n", "'a' is on line 6 and line 8"),
        (SPECIAL_LINES + b"\xff\n", r"not UTF-8 text \(byte 31\)"),
        (b"[PAD]\n[UNK]\n[SEP]\na\n", r"has no \[CLS\], \[MASK\]"),
        (b"\x0a\x07junk model", "blank"),
    ],
)
def test_malformed_vocabulary_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(vocab_file=path)
    assert "vocab.txt" in str(error.value)
    assert "\n" not in str(error.value)


def test_exactly_one_vocabulary(tmp_path):
    with pytest.raises(UserError, match="--vocab_file and --spm_model_file; neither was given"):
        load_tokenizer()
    with pytest.raises(UserError, match="both were given"):
        load_tokenizer(vocab_file="a", spm_model_file="b")
    with pytest.raises(UserError, match=r"--vocab_file: .* does not exist"):
        load_tokenizer(vocab_file=tmp_path / "none.txt")
    with pytest.raises(UserError, match=r"--spm_model_file: .* does not exist"):
        load_tokenizer(spm_model_file=tmp_path / "none.model")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["[CLS]", "[unused1]", "<S>", "the", "##s", "."], False),
        (["[CLS]", "the", "The"], True),
        (["[CLS]", "##É"], True),
        (["[CLS]", "中", "가", "7", "."], None),
        (["[", "]", "A"], True),
        ([], None),
    ],
)
def test_casing_shows_in_the_entries(entries, expected):
    assert is_cased(entries) is expected
