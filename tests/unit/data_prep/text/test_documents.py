from __future__ import annotations

import collections
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.util.errors import UserError
from data_prep.text import documents as module


def read(tmp_path, content, *, max_bytes=1 << 18):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    return list(module.read_documents(path, max_bytes=max_bytes))


def lines_of(documents):
    return [list(module.decode_document(document)) for document in documents]


def test_blank_lines_and_the_end_of_the_file_divide_documents(tmp_path):
    documents = read(tmp_path, b"\n  \none\r\n two \n\t\n\nthree\n\nfour")
    assert lines_of(documents) == [[["one", "two"]], [["three"]], [["four"]]]
    assert [document.first_line for document in documents] == [3, 7, 9]


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\t\r\n\n"])
def test_white_space_is_no_document(tmp_path, content):
    assert read(tmp_path, content) == []


def test_a_line_of_unicode_white_space_divides_too(tmp_path):
    documents = read(tmp_path, "one\n\u3000\u2003\ntwo\n\u3000\n".encode())
    assert lines_of(documents) == [[["one"], ["two"]]]


@pytest.mark.parametrize(
    ("line_end", "repeats"),
    [
        *(("\r", 1), ("\r\n", 1), ("\r\r\n", 1), ("\r\r\n", 60_000)),
        pytest.param("\r", 60_000, marks=pytest.mark.exhaustive),
        pytest.param("\r\n", 60_000, marks=pytest.mark.exhaustive),
    ],
)
def test_line_ends_of_other_systems_divide_documents_alike(tmp_path, line_end, repeats):
    text = "A line.\nAnd another.\n\n\nA document.\n\n" * repeats
    expected = read(tmp_path, text.encode())
    found = read(tmp_path, text.replace("\n", line_end).encode())
    assert [d.first_line for d in found] == [d.first_line for d in expected]
    assert lines_of(found) == lines_of(expected)


def test_a_long_document_is_cut_at_a_line(tmp_path):
    documents = read(tmp_path, b"aaaa\nbbbb\ncccc\n\ndd\n", max_bytes=8)
    assert [document.text for document in documents] == [b"aaaa\nbbbb\n", b"cccc\n", b"dd\n"]
    assert [document.first_line for document in documents] == [1, 3, 5]
    assert [document.piece for document in documents] == [1, 2, 0]


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b"\ndd\n"])
def test_a_document_that_just_reaches_the_limit_is_whole(tmp_path, end):
    path = tmp_path / "text.txt"
    path.write_bytes(b"aaaa\nbbbb\n" + end)
    cuts = collections.Counter()
    documents = list(module.read_documents(path, max_bytes=8, cuts=cuts))
    assert documents[0].text == b"aaaa\nbbbb\n"
    assert not cuts
    assert not any(document.piece for document in documents)


def test_cuts_are_counted(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"aaaa\nbbbb\n" * 3 + b"\n" + b"cccc\n" * 3)
    cuts = collections.Counter()
    documents = list(module.read_documents(path, max_bytes=8, cuts=cuts))
    assert [document.piece for document in documents] == [1, 2, 3, 1, 2]
    assert cuts == {"cut_documents": 3}


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path):
    (document,) = read(tmp_path, b"\n\none\ntwo\nth\xffree\n")
    with pytest.raises(UserError, match=r"line 5 of .*text\.txt is not UTF-8"):
        list(module.decode_document(document))


def test_a_line_that_is_too_long_is_named(tmp_path):
    with pytest.raises(UserError, match=r"line 2 of .*text\.txt is longer than 1 MiB"):
        read(tmp_path, b"short\n" + b"x" * (1 << 20))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=40))
def test_blocks_hold_all_documents_in_order(sizes):
    documents = [module.Document("x", number, b"x" * size) for number, size in enumerate(sizes)]
    made = list(module.group_documents(documents, block_bytes=40))
    assert [block.number for block in made] == list(range(len(made)))
    assert [document for block in made for document in block.documents] == documents
    for block in made[:-1]:
        assert sum(len(document.text) for document in block.documents) >= 40
    for block in made:
        # No document is larger than 30, so a block ends within 30 of its size, or has one more.
        assert sum(len(document.text) for document in block.documents) < 40 + 30 + 30
        assert len(block.documents) > 1 or len(documents) == 1


def test_reading_is_lazy():
    def documents():
        for number in range(10):
            yield module.Document("x", number, b"x" * 50)
        raise AssertionError("read too far")

    first = next(module.group_documents(documents(), block_bytes=100))
    assert len(first.documents) == 2


@pytest.mark.parametrize(
    ("content", "before"),
    [
        (b"a\n\nb\nc", b"a\n\n"),
        (b"a\r\n\r\nb", b"a\r\n\r\n"),
        (b"a\r\rb\rc", b"a\r\r"),
        (b"a\r\r\nb\r\r\nc", b""),  # a line feed after two carriage returns is one line end
        (b"a\nb", b""),
    ],
)
def test_last_blank_line(content, before):
    assert content[: module.last_blank_line(content)] == before


@pytest.mark.parametrize(
    ("content", "before"),
    [
        ("One. Two three", "One. "),
        ("Eins.« Zwei", "Eins.« "),
        ("一。二三", "一。"),
        ("one two", "one "),
        ("ääää", "äää"),
        ("One.\ntwo. three", "One.\n"),
    ],
)
def test_cut_position(content, before):
    encoded = content.encode()
    assert encoded[: module.cut_position(encoded)].decode() == before


@given(st.text(alphabet="aä. 。\U0001f600", min_size=1), st.integers(4, 20))
def test_cut_sentences_lose_nothing(sentence, max_bytes):
    sentence = " ".join(sentence.split())
    parts, cuts = module.cut_long_sentences([sentence], max_bytes)
    assert "".join("".join(parts).split()) == "".join(sentence.split())
    assert all(len(part.encode()) <= max_bytes for part in parts)
    assert cuts == len(parts) - 1


@pytest.mark.parametrize("text", ["A sentence. " * 300, "ä" * 2000, "word " * 600])
def test_long_lines_are_cut_or_refused(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_text(f"First.\n{text}\nLast.\n\nOther.\n")
    with pytest.raises(UserError, match=r"line 2 of .* is longer than"):
        list(module.read_documents(path, max_bytes=1 << 20))
    counts = collections.Counter()
    documents = list(module.read_documents(path, max_bytes=1 << 20, cut_lines=True, cuts=counts))
    lines = documents[0].text.decode().split("\n")
    assert max(len(line.encode()) for line in lines) < 1000
    assert "".join("".join(lines).split()) == "".join(f"First.{text}Last.".split())
    assert counts["cut_lines"] == len(lines) - 4
    assert documents[1].first_line == 5


@given(st.binary(max_size=60), st.integers(1, 9), st.integers(1, 30))
def test_parts_end_at_borders_unless_these_are_far(content, read_bytes, most_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_BYTES", read_bytes)
        parts = list(
            module.read_parts(
                io.BytesIO(content),
                "a.txt",
                border=lambda text: text.rfind(b"\n") + 1,
                cut=lambda text: len(text) - 1 or 1,
                most_bytes=most_bytes,
            )
        )
    assert b"".join(part.content for part in parts) == content
    assert all(part.content for part in parts)
    for part, after in zip(parts, parts[1:]):
        assert part.offset + len(part.content) == after.offset
        assert part.is_cut != part.content.endswith(b"\n")
        assert not part.is_cut or len(part.content) + 1 >= most_bytes


def test_bytes_that_are_not_utf8():
    content = "one \ufffd two ".encode() + b"\xff\xfe caf\xe9 \xc3\xa9"
    with pytest.raises(UserError, match=r"^--input_file: byte 12 of line 3 of a is not UTF-8; "):
        module.Decoder()(content, "line 3 of a")
    with pytest.raises(UserError, match=r"^--input_file: a, at byte 19, is not UTF-8; "):
        module.Decoder()(content, module.Part("a", 7, content).place)
    decode = module.Decoder(module.REPLACE)
    assert decode(content, "") == "one \ufffd two \ufffd\ufffd caf\ufffd é"
    assert decode(b"\xff", "") == "\ufffd"
    assert decode.counts == {module.REPLACED: 4}  # not the one that was there


@given(st.lists(st.sampled_from(["", "a", "b c"])))
def test_runs_of_lines(lines):
    runs = [run.split("\n") for run in re.split("\n\n+", "\n".join(lines).strip("\n")) if run]
    assert list(module.between_blank_lines(lines)) == runs
