"""Lines of a file, pairs, and pieces of work."""

import re

import numpy as np
import pytest

from bert_tf.tasks.vectors.texts import read_texts
from bert_tf.util.errors import UserError


def texts_of(tmp_path, content, **how):
    path = tmp_path / "texts.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_texts(path, flag="input_file", **how)


def naive_parts(line):
    """google-research/bert's pattern."""
    match = re.match(r"^(.*) \|\|\| (.*)$", line.strip())
    return (line.strip(),) if match is None else match.groups()


LINES = [
    "one text", "a ||| b", "  a b |||  c d  ", "a ||| b ||| c", "a ||| ||| b", "||| b", "a |||",
    "a|||b", "a  |||  b", "\ta\t", "häßlich ||| schön", "a\x0bb", "a\u2028b ||| c",
]  # fmt: skip


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_lines_and_pairs(tmp_path, line_end, last):
    content = "".join(line + line_end for line in LINES) + last
    texts = texts_of(tmp_path, content)
    found = [texts.parts(number) for number in range(len(texts))]
    assert found == [naive_parts(line) for line in [*LINES, *filter(None, [last])]]


def test_an_empty_line(tmp_path):
    content = "a\n \t\nb\n"
    with pytest.raises(UserError, match=r"line 2 of .*texts\.txt is empty; remove it, or give"):
        texts_of(tmp_path, content)
    texts = texts_of(tmp_path, content, keep_empty=True)
    assert [texts.parts(number) for number in range(3)] == [("a",), ("",), ("b",)]


def test_a_line_that_is_not_utf8(tmp_path):
    with pytest.raises(UserError, match=r"line 3 of .*texts\.txt is not UTF-8; convert"):
        texts_of(tmp_path, b"a\nb\nc\xe9\n")


@pytest.mark.parametrize(("content", "words"), [(None, "does not exist"), ("", "is empty")])
def test_no_text_at_all(tmp_path, content, words):
    path = tmp_path / "texts.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=f"--input_file: .*texts.txt {words}"):
        read_texts(path, flag="input_file")


def test_pieces_hold_every_line_once_and_about_as_many_tokens(tmp_path):
    rng = np.random.RandomState(0)
    lengths = rng.randint(1, 60, 500)
    texts = texts_of(tmp_path, "".join("word " * n + "\n" for n in lengths))
    pieces = texts.pieces(most_tokens=300, max_seq_length=20)
    assert [number for piece in pieces for number in piece] == list(range(500))
    estimates = [sum(min((5 * lengths[n] + 1) // 4 + 2, 20) for n in piece) for piece in pieces]
    assert max(estimates) <= 300 + 20
    assert min(estimates[:-1]) >= 300 - 20
