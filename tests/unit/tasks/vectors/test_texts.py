"""Lines of a file, pairs and pieces of work; texts become sequences as in google-research/bert."""

import itertools
import re

import numpy as np
import pytest

from bert_tf.tasks.vectors.texts import SequenceMaker, read_texts
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

CLS, SEP, PAD, FIRST = 2, 3, 0, 5


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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = "".join(f"w{number}\n" for number in range(35))
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + words)
    return load_tokenizer(vocab_file=path, do_lower_case=False)


def text_of(numbers):
    return " ".join(f"w{number}" for number in numbers)


def naive(first, second, length):
    """Ids and segments, one token removed at a time."""
    a, b = list(first), list(second)
    while len(a) + len(b) > length - (3 if b or second else 2):
        (a if len(a) > len(b) else b).pop()
    ids = [CLS, *(FIRST + n for n in a), SEP]
    segments = [0] * len(ids)
    if b:
        ids += [*(FIRST + n for n in b), SEP]
        segments += [1] * (len(b) + 1)
    return ids, segments


@pytest.mark.parametrize("length", [5, 8, 16])
def test_sequences_against_one_token_at_a_time(tokenizer, length):
    maker = SequenceMaker(tokenizer, length)
    for sizes in itertools.product(range(9), range(9)):
        first, second = range(sizes[0]), range(20, 20 + sizes[1])
        texts = [text_of(first), *([text_of(second)] if second else [])]
        found = maker.sequence(texts)
        ids, segments = naive(first, second, length)
        assert found.ids.tolist() == ids
        assert found.first == segments.count(0)
        assert found.is_cut == (sum(sizes) > length - 1 - len(texts))


def test_a_batch(tokenizer):
    maker = SequenceMaker(tokenizer, 16)
    batch = maker.batch([maker.sequence(["w0 w1"]), maker.sequence(["w2", "w3"])], 6)
    np.testing.assert_array_equal(
        batch["input_ids"], [[CLS, 5, 6, SEP, PAD, PAD], [CLS, 7, SEP, 8, SEP, PAD]]
    )
    np.testing.assert_array_equal(batch["input_mask"], [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(batch["segment_ids"], [[0] * 6, [0, 0, 0, 1, 1, 0]])


def test_a_second_text_without_tokens_is_left_out(tokenizer):
    maker = SequenceMaker(tokenizer, 16)
    assert maker.sequence(["w0", " "]).ids.tolist() == [CLS, 5, SEP]


def test_no_room_for_a_pair(tokenizer):
    maker = SequenceMaker(tokenizer, 4)
    maker.sequence(["w0 w1 w2"])
    with pytest.raises(UserError, match="--max_seq_length=4 has no room for a pair of texts"):
        maker.sequence(["w0", "w1"])
