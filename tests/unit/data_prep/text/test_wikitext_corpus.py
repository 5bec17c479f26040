"""What counts as WikiText, and what becomes of its unknown words."""

from __future__ import annotations

import pytest

from bert_tf.util.errors import UserError
from data_prep.text import wikitext_corpus as markup


@pytest.mark.parametrize(
    "line", ["= A =", "= Two words =", "= = A = =", "= = = A b = = =", "= E = mc2 =", "= ( 1 ) ="]
)
def test_headings(line):
    assert markup.is_heading(line)


@pytest.mark.parametrize(
    "line",
    ["", "=", "= =", "= = =", "= = = =", "= A", "A =", "== A ==", "= = A =", "= A = =", "x = A ="],
)
def test_other_lines(line):
    assert not markup.is_heading(line)


def test_articles_begin_at_titles():
    documents = [["before"], ["= A =", "one"], ["= = B = =", "two"], ["= C =", "= D ="]]
    assert list(markup.articles(documents)) == [
        ["before"],
        ["= A =", "one", "= = B = =", "two"],
        ["= C ="],
        ["= D ="],
    ]
    assert list(markup.articles([])) == []


@pytest.mark.parametrize(
    ("content", "cut"),
    [
        (b"", 0),
        (b" = A = \n text", 0),
        (b"text\n = A = \n \n = = B = = \n text", 5),
        (b"x\n= A =\r\n= B =\r\n", 9),
        (b"x\n = A =", 0),  # the line may go on
    ],
)
def test_the_last_title(content, cut):
    assert markup.last_title(content) == cut


def encode(text):
    return [len(word) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a <unk> bcd", [1, 0, 3]),
        ("<unk>", [0]),
        ("<unk> <unk> a <unk>", [0, 0, 1, 0]),
        ("a<unk> (<unk>)", [6, 7]),
        ("ab cd", [2, 2]),
        ("", []),
    ],
)
def test_an_unknown_word_is_one_token(text, ids):
    assert markup.encode_unknown_words(encode, 0)(text) == ids


def test_unknown_words_are_left_out():
    assert markup.without_unknown_words("a <unk> b\n<unk>\nc<unk>").split() == ["a", "b", "c<unk>"]


def test_plain_text_leaves_no_trace_in_parameters():
    assert markup.MarkupSettings("plain").markup_parameters == {}
    assert markup.MarkupSettings("wikitext").markup_parameters == {"markup": "wikitext"}
    with pytest.raises(UserError, match="--markup=html"):
        markup.MarkupSettings("html")
