"""vocab.txt: what is read, what is refused."""

from __future__ import annotations

import hashlib
import json

import pytest
import tokenizers

from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.tokenizer_json import tokenizer_json
from bert_tf.text.vocabulary import (
    SPECIAL_TOKENS,
    is_cased,
    read_vocab_file,
    write_vocab_file,
)
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

SPECIAL_LINES = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb \r\n", ["a", "b "]),
        (b"a\rb\n\nc\n\n\r\n", ["a", "b", "", "c"]),
        (b"a\nb\na\n", ["a", "b", "a"]),
        (b"[UNK] \nb\n", ["[UNK]", "b"]),
        ("\ufeff[PAD]\n\ufeffb\n".encode(), ["[PAD]", "\ufeffb"]),
        (b"[UNK] \n[UNK]\n", ["[UNK] ", "[UNK]"]),
        ("a\n\u2028\n##\u2028\nb\u00e9\n".encode(), ["a", "\u2028", "##\u2028", "b\u00e9"]),
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
    assert tokenizer.vocab_digest == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "vocab.txt is empty"),
        (SPECIAL_LINES + b"\xff\n", r"not UTF-8 text \(byte 31\)"),
        (b"[PAD]\n[UNK]\n[SEP]\na\n", r"has no \[CLS\], \[MASK\]"),
        (b"\x0a\x07junk model", r"has no \[PAD\]"),
    ],
)
def test_malformed_vocabulary_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(vocab_file=path)
    assert "vocab.txt" in str(error.value)
    assert "\n" not in str(error.value)


UNUSUAL = {
    "blank lines": ("", "the\n\nfilm\n\n##s\n\n\n"),
    "repeated": ("", "the\nfilm\n##s\nthe\ngood\n##s\n[SEP]\nfilm\n"),
    "white space": ("", "the \n film\n\u2028\n\u3000\n \n\t\nfilm\n##s\n"),
    "line ends": ("", "the\r\nfilm\rgood\r\n##s\n"),
    "byte order mark": ("\ufeff", "the\nfilm\n##s\n"),
    "all": ("\ufeff", "\n\nthe\n \nthe\n##s\r\r\nfilm\n\n"),
}


@pytest.mark.parametrize(("first", "lines"), UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_files_have_the_ids_of_transformers(tmp_path, first, lines):
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "vocab.txt"
    path.write_bytes((first + SPECIAL_LINES.decode() + lines).encode())
    ours = TokenizerFiles(path, None, True).load()
    as_json = tmp_path / "tokenizer.json"
    as_json.write_text(json.dumps(tokenizer_json(TokenizerFiles(path, None, True))[0]))
    theirs = [transformers.BertTokenizer(path), transformers.BertTokenizerFast(str(path))]
    written = tokenizers.Tokenizer.from_file(str(as_json))
    for text in ("the films, the good", "the\u3000films\u2028good  a", "film film the"):
        expected = [each(text, add_special_tokens=False)["input_ids"] for each in theirs]
        assert expected == [ours.encode(text)] * 2
        assert written.encode(text, add_special_tokens=False).ids == ours.encode(text)
        assert load_tokenizer(vocab_file=as_json).encode(text) == ours.encode(text)
    for name in ("[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        assert ours.convert_tokens_to_ids([name]) == [theirs[0].convert_tokens_to_ids(name)]
    assert (ours.pad_id, ours.sep_id) == (0, theirs[1].sep_token_id)


def test_a_note_names_unusual_entries_once(tmp_path, capsys):
    content = b"\xef\xbb\xbf" + SPECIAL_LINES + b"\n\xe3\x80\x80\nb\n\nb\n" + b"c d\n" * 7
    for name in ("vocab.txt", "copy.txt"):
        (tmp_path / name).write_bytes(content)
        TokenizerFiles(tmp_path / name).load()
        TokenizerFiles(tmp_path / name).load()
    assert capsys.readouterr().err == (
        f"vocabulary {tmp_path / 'vocab.txt'} has a byte order mark (id 0), blank entries (id 5, "
        "8), entries with white space (id 6, 10, 11, 12, 13, ...), entries that are repeated later "
        "(id 7, 10, 11, 12, 13, ...); ids are line numbers from 0, as in transformers, so leave "
        "the file as it is\n"
    )


def test_a_usual_vocabulary_has_no_note(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_bytes(SPECIAL_LINES + b"a\r\n##b\n\n")
    TokenizerFiles(tmp_path / "vocab.txt").load()
    assert capsys.readouterr() == ("", "")


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
