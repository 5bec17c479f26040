"""WordPiece ids against google's (golden file), transformers' and a naive reading of the rules."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.text import wordpiece
from bert_tf.text.vocabulary import write_vocab_file
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import (
    load_tokenizer,
    odd_and_plain_texts,
    write_small_vocabulary,
)

ROOT = Path(__file__).parents[3]
GOLDEN = json.loads((ROOT / "tests/data/google_tokenizer_golden.json").read_text())
SHARED_DATA = ROOT.parent / "shared/data"


def _load(directory, entries, *, lower_case):
    write_vocab_file(directory / "vocab.txt", entries)
    return load_tokenizer(vocab_file=directory / "vocab.txt", do_lower_case=lower_case)


def _with_specials(*entries):
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *entries]


@pytest.fixture(scope="module")
def golden_tokenizers(tmp_path_factory):
    path = tmp_path_factory.mktemp("golden")
    return {
        "uncased": _load(path, GOLDEN["vocabulary"], lower_case=True),
        "cased": _load(path, GOLDEN["vocabulary"], lower_case=False),
    }


@pytest.mark.parametrize("casing", ["uncased", "cased"])
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: ascii(case["text"])[:30])
def test_ids_are_googles(golden_tokenizers, case, casing):
    tokenizer = golden_tokenizers[casing]
    assert tokenizer.basic.words(case["text"]) == case[f"words_{casing}"]
    assert tokenizer.encode(case["text"]) == case[f"ids_{casing}"]


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_whole_text_gives_the_ids_of_its_lines(golden_tokenizers, casing):
    text = "\n".join(case["text"] for case in GOLDEN["cases"])
    ids = [index for case in GOLDEN["cases"] for index in case[f"ids_{casing}"]]
    assert golden_tokenizers[casing].encode(text) == ids


BLOCKS = [
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
]


def _is_ideograph(char):
    return any(low <= ord(char) <= high for low, high in BLOCKS)


def _naive_words(text, lower_case):
    """The published rules one after the other, a word and a character at a time."""
    kept = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            kept += " "
        elif category not in ("Cc", "Cf") and char not in "\0\ufffd":
            kept += f" {char} " if _is_ideograph(char) else char
    words = []
    for word in kept.split():
        if lower_case:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        part = ""
        for char in word:
            symbol = 32 < ord(char) < 127 and not char.isalnum()
            if symbol or unicodedata.category(char).startswith("P"):
                words += [part, char]
                part = ""
            else:
                part += char
        words.append(part)
    return [piece for word in words for piece in word.split()]


def _naive_pieces(word, entries):
    if len(word) > 200:
        return ["[UNK]"]
    pieces, prefix = [], ""
    while word:
        fits = [length for length in range(1, len(word) + 1) if prefix + word[:length] in entries]
        if not fits:
            return ["[UNK]"]
        pieces.append(prefix + word[: fits[-1]])
        word, prefix = word[fits[-1] :], "##"
    return pieces


INTERESTING = st.sampled_from(
    "aAbeEiInsΣσςİıé\u0301\u0345Å中文가'’.,-#[] \t\n\x0b\x0c\x1c\x85\u2028\u200b\u00a0\ue000"
)


@settings(max_examples=400, deadline=None)
@given(st.text(st.one_of(INTERESTING, st.characters()), max_size=60), st.booleans())
def test_words_and_pieces_follow_the_rules(golden_tokenizers, text, lower_case):
    tokenizer = golden_tokenizers["uncased" if lower_case else "cased"]
    words = _naive_words(text, lower_case)
    entries = set(GOLDEN["vocabulary"])
    pieces = [piece for word in words for piece in _naive_pieces(word, entries)]
    assert tokenizer.basic.words(text) == words
    assert tokenizer.tokenize(text) == pieces


@pytest.mark.parametrize(("low", "high"), BLOCKS, ids=lambda end: f"{end:X}")
def test_the_ends_of_every_block_of_ideographs(golden_tokenizers, low, high):
    """Too rare for real or random text."""
    for code in (low - 1, low, high, high + 1):
        text = f"a{chr(code)}b"
        words = golden_tokenizers["cased"].basic.words(text)
        assert words == _naive_words(text, lower_case=False), hex(code)
        assert len(words) == 3 or not low <= code <= high


REAL_TEXTS = (
    "text/bert-sample_text.txt",
    "text/botchan.txt",
    "wikitext/wikitext-2-valid.tokens",
    "imdb/dev.tsv",
    "vocab/bert-chinese-vocab.txt",
)


def released(name):
    """A released vocabulary and real text."""
    vocab_file = SHARED_DATA / f"vocab/bert-{name}-vocab.txt"
    if not vocab_file.exists():
        pytest.skip("../shared/data is not here")
    contents = [(SHARED_DATA / path).read_bytes()[:60_000] for path in REAL_TEXTS]
    return vocab_file, [content.decode("utf-8", "ignore") for content in contents]


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("name", ["uncased", "multilingual-cased", "chinese", "small"])
def test_real_text_gives_the_ids_of_transformers(name, lower_case, tmp_path):
    """Its slow tokenizer works by the same rules except for NFC and categories Cn, Co, Cs.

    It composes a text first and drops private-use, unassigned and surrogate characters; text
    without these is taken here, and its limit of characters a word is set to google's.
    """
    transformers = pytest.importorskip("transformers.models.bert.tokenization_bert")
    if name == "small":
        vocab_file = write_small_vocabulary(tmp_path / "vocab.txt", lower_case=lower_case)
        texts = odd_and_plain_texts()
    else:
        vocab_file, texts = released(name)
    tokenizer = load_tokenizer(vocab_file=vocab_file, do_lower_case=lower_case)
    # Only line feeds separate entries: the Chinese vocabulary has U+2028 as one of them.
    entries = vocab_file.read_bytes().decode("utf-8").split("\n")[:-1]
    ids = {entry.strip(): index for index, entry in enumerate(entries)}
    basic = transformers.BasicTokenizer(do_lower_case=lower_case)
    pieces = transformers.WordpieceTokenizer(ids, unk_token="[UNK]", max_input_chars_per_word=200)
    count = 0
    for text in texts:
        text = unicodedata.normalize("NFC", text)
        text = "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Co", "Cs"))
        for line in text.split("\n"):
            words = basic.tokenize(line)
            expected = [ids[piece] for word in words for piece in pieces.tokenize(word)]
            assert tokenizer.encode(line) == expected, line
            count += len(expected)
    assert count > (10_000 if name == "small" else 40_000)


def test_limit_of_characters_is_googles_not_transformers(tmp_path):
    tokenizer = _load(tmp_path, _with_specials("a", "##a"), lower_case=True)
    assert tokenizer.encode("a" * 200) == [5] + [6] * 199
    assert tokenizer.encode("a" * 201 + " a") == [tokenizer.unk_id, 5]


def test_full_caches_are_emptied_and_change_no_id(tmp_path, monkeypatch):
    tokenizer = _load(tmp_path, GOLDEN["vocabulary"], lower_case=True)
    monkeypatch.setattr(wordpiece, "CACHED_WORDS", 5)
    sizes = []
    for case in GOLDEN["cases"] * 2:
        assert tokenizer.encode(case["text"]) == case["ids_uncased"]
        sizes.append(len(tokenizer._ids_of_chunk))
        sizes.append(len(tokenizer._ids_of_word))
        assert all(len(word) <= 64 for word in tokenizer._ids_of_chunk)
    assert max(sizes) == 5


def test_interface(tmp_path):
    tokenizer = _load(tmp_path, _with_specials("un", "##able", "cat", "."), lower_case=True)
    ids = tokenizer.encode("Unable cat.")
    assert ids == [5, 6, 7, 8]
    assert tokenizer.tokenize("Unable dog") == ["un", "##able", "[UNK]"]
    assert tokenizer.word_starts([2, *ids, 3]) == [True, True, False, True, True, True]
    assert tokenizer.decode([2, *ids, 4]) == "[CLS] unable cat . [MASK]"
    assert tokenizer.convert_tokens_to_ids(["[MASK]", "cat"]) == [4, 7]
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}
    assert (tokenizer.vocab_size, tokenizer.kind, tokenizer.lower_case) == (9, "wordpiece", True)
    with pytest.raises(UserError, match="'dog' is not in the vocabulary"):
        tokenizer.convert_tokens_to_ids(["dog"])
    for index in (9, -1):
        with pytest.raises(UserError, match=f"id {index} is not in the vocabulary of 9"):
            tokenizer.convert_ids_to_tokens([index])


def test_special_entries_are_found_anywhere_and_never_in_text(tmp_path):
    entries = ["[", "]", "cls", *reversed(_with_specials())]
    tokenizer = _load(tmp_path, entries, lower_case=True)
    assert (tokenizer.mask_id, tokenizer.sep_id, tokenizer.cls_id) == (3, 4, 5)
    assert (tokenizer.unk_id, tokenizer.pad_id) == (6, 7)
    assert tokenizer.encode("[CLS]") == [0, 2, 1]
