"""Words that a vocabulary lacks, found by counting one at a time."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.new_words import (
    NewWord,
    broken_words,
    choose_words,
    count_tokens,
    count_words,
    extend,
    own_words,
)
from bert_tf.text.tokenizer import SpecialIds
from bert_tf.text.wordpiece import WordPieceTokenizer
from bert_tf.util.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdeéßж"


def tokenizer_of(*words, lower_case=True):
    entries = [*SPECIAL, "[unused0]", "[unused1]", *words]
    special = SpecialIds(0, 1, 2, 3, 4)
    return WordPieceTokenizer(
        entries, BasicTokenizer(lower_case=lower_case), special=special, vocab_digest=""
    )


def with_letters(*words, lower_case=True):
    """A vocabulary with every letter, inside and at the start of a word."""
    letters = [letter for one in LETTERS for letter in (one, f"##{one}")]
    return tokenizer_of(*letters, *words, lower_case=lower_case)


def chosen(text, tokenizer, *, most, min_count=1):
    counts = dict(collections.Counter(text.split()))
    candidates = broken_words(counts, tokenizer, min_count=min_count)
    return choose_words(candidates, counts, tokenizer, own=[], most=most)


def test_words_that_save_most_tokens_come_first():
    tokenizer = with_letters("abc")
    words = chosen("abcde " * 4 + "edcba " * 3 + "ab " * 9 + "abc a " * 50, tokenizer, most=9)
    assert [(new.word, new.count, new.saved) for new in words] == [
        ("edcba", 3, 12), ("ab", 9, 9), ("abcde", 4, 8)
    ]  # fmt: skip
    assert [new.word for new in chosen("ab ba ab ba", tokenizer, most=9)] == ["ab", "ba"]


def test_rare_words_numbers_and_unknown_words_are_left_out():
    tokenizer = with_letters("1", "##1", "##2")
    text = "ab ab cd 11 12 11 12 a1 a1 1a 1a qq qq"
    assert {new.word for new in chosen(text, tokenizer, most=9, min_count=2)} == {"ab", "a1", "1a"}
    long = "ab" * 51
    assert not chosen(f"{long} {long}", tokenizer, most=9)


def test_words_are_those_of_the_tokenizer(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\ufeffAb-ab, ÉÀ\nжЖ 中文 Ab\x00b", encoding="utf-8")
    assert count_words([path], BasicTokenizer(lower_case=True), flag="text") == {
        "ab": 2, "-": 1, ",": 1, "ea": 1, "жж": 1, "中": 1, "文": 1, "abb": 1
    }  # fmt: skip
    cased = count_words([path], BasicTokenizer(lower_case=False), flag="text")
    assert {"Ab", "ab", "ÉÀ", "жЖ"} <= cased.keys()


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\ntwo \xe9\n")
    with pytest.raises(UserError, match=r"--text: line 2 of .*text.txt is not UTF-8 \(byte 4"):
        count_words([path], BasicTokenizer(lower_case=True), flag="text")


def test_unused_entries_are_replaced_first():
    tokenizer = with_letters()
    words = [NewWord(word, 1, (7, 8)) for word in ("ab", "cd", "abc", "bca")]
    extension = extend(tokenizer, words, use_unused=True)
    size = tokenizer.vocab_size
    assert {index: new.word for index, new in extension.words.items()} == {
        5: "ab", 6: "cd", size: "abc", size + 1: "bca"
    }  # fmt: skip
    assert extension.entries[5:7] == ("ab", "cd")
    assert extension.entries[size:] == ("abc", "bca")
    assert extension.num_appended == 2
    kept = extend(tokenizer, words, use_unused=False)
    assert kept.entries[5:7] == ("[unused0]", "[unused1]")
    assert kept.entries[size:] == ("ab", "cd", "abc", "bca")


def test_an_entry_that_makes_other_words_unknown_is_left_out():
    """With an entry "ab", the word "a ##bé" would begin with that, and "##é" is missing."""
    tokenizer = tokenizer_of("a", "##b", "##bé", "c", "##d", lower_case=False)
    text = "ab ab ab abé cd cd"
    assert tokenizer.tokenize("abé") == ["a", "##bé"]
    words = chosen(text, tokenizer, most=1)
    assert [new.word for new in words] == ["cd"]
    extended = extend(tokenizer, words, use_unused=True).tokenizer(tokenizer)
    assert extended.unk_id not in extended.encode(text)


WORDS = st.text(LETTERS, min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(
    text=st.lists(WORDS, min_size=1, max_size=60),
    entries=st.lists(WORDS, max_size=10),
    most=st.integers(0, 12),
)
def test_every_new_word_is_one_token_and_the_counts_are_exact(text, entries, most):
    known = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = with_letters(*dict.fromkeys(e for e in entries if e not in known), lower_case=False)
    words = chosen(" ".join(text), tokenizer, most=most)
    extension = extend(tokenizer, words, use_unused=True)
    extended = extension.tokenizer(tokenizer)
    for index, new in extension.words.items():
        assert extended.encode(new.word) == [index]
        assert tokenizer.encode(new.word) == list(new.pieces)
    others = set(range(tokenizer.vocab_size)) - extension.words.keys()
    assert all(tokenizer.convert_ids_to_tokens([n]) == [extension.entries[n]] for n in others)
    counts = dict(collections.Counter(text))
    for one in (tokenizer, extended):
        assert count_tokens(counts, one) == (len(one.encode(" ".join(text))), 0)
    left = {word for word in text if len(extended.encode(word)) > 1}
    if len(words) < most:
        assert not left


def test_own_words_are_normalised_and_others_named():
    tokenizer = with_letters("abc")
    found, refused = own_words(
        ["ABé", "", "ab-cd", "abc ", "qq", "a" * 101, "Abé"], {"abe": 3}, tokenizer
    )
    assert [(new.word, new.count) for new in found] == [("abe", 3), ("qq", 0)]
    assert found[1].pieces == (tokenizer.unk_id,)
    assert refused == {
        "ab-cd": "not a single word for this tokenizer",
        "abc": "already in the vocabulary",
        "a" * 101: "too long",
    }


def test_own_words_come_first_and_once():
    tokenizer = with_letters()
    counts = {"ab": 5, "cd": 4}
    candidates = broken_words(counts, tokenizer, min_count=1)
    own, _ = own_words(["cd"], counts, tokenizer)
    words = choose_words(candidates, counts, tokenizer, own=own, most=5)
    assert [new.word for new in words] == ["cd", "ab"]
