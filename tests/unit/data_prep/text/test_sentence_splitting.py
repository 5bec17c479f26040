"""Tests data_prep.text.sentence_splitting."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.text import sentence_splitting
from data_prep.text.sentence_splitting import split_sentences

PIECES = (
    *("a", "B. ", "Mr. ", "z. B. ", "5. ", "г. ", ". ", ".", " ", "!", "?", "。", "।", "…"),
    *('"', "“", "”", "«", "»", "(", ")", "é", "e\u0301", "😀", "\u200b", "\x01", "「", "」"),
)
LANGUAGES = ("en", "de", "fr", "es", "ru", "ja", "hi", "ar", "hy", "zh-yue", "xx")


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Mr. Smith met Dr. Jones at 5 p.m. on Jan. 5.", "He left."]),
        ("en", ["The U.S. Army paid J. R. R. Tolkien, e.g. for books.", "Is it so?", "No!"]),
        ("en", ['He said "Hello."', "Prof. A. Einstein (b. 1879) lived in St. Louis."]),
        ("de", ["Das gilt z. B. für Dr. Müller.", "Am 3. Oktober 1990 kam die Wende."]),
        ("de", ["Die Stadt hat ca. 500 Einwohner.", "Vgl. Bd. 3, S. 45."]),
        ("es", ["La Dra. Pérez vive en EE. UU. desde 1990.", "Véase pág. 4."]),
        ("ru", ["Он родился в 1879 г. в городе Ульм.", "А. С. Пушкин писал стихи."]),
        ("zh", ["这是一个句子。", "这是另一个句子！", "对吗？"]),
        ("hi", ["यह एक वाक्य है।", "यह दूसरा है।"]),
    ],
)
def test_abbreviations_end_no_sentence(language, sentences):
    joiner = "" if language == "zh" else " "
    found = list(split_sentences(joiner.join(sentences), language))
    assert [sentence.strip() for sentence in found] == sentences


def test_the_language_decides():
    text = "Vgl. Bd. 3 und S. 45."
    assert list(split_sentences(text, "de")) == [text]
    assert len(list(split_sentences("Am 3. Oktober war es.", "en"))) == 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60), st.sampled_from(LANGUAGES))
@example(["« a. "] * 50, "fr")
def test_the_whole_text_whatever_the_window(pieces, language):
    text = " ".join("".join(pieces).split())
    for window in (4, 50, 1 << 14):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sentence_splitting, "WINDOW_CHARACTERS", window)
            assert "".join(split_sentences(text, language)) == text


def test_a_window_ends_at_a_sentence():
    sentence = "Dr. Jones met Mr. Smith on Jan. 5. "
    found = list(split_sentences(sentence * 2000, "en"))
    assert found == [sentence] * 2000


def test_a_sentence_longer_than_a_window_is_whole():
    long = "word " * 20_000 + "end. "
    assert list(split_sentences(f"Short. {long}Then.", "en")) == ["Short. ", long, "Then."]
