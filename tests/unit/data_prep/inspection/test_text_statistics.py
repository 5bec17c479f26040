"""Statistics of text, whatever its bytes, against a plain count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.inspection import text_statistics
from data_prep.inspection.hash_sample import HashSample
from data_prep.inspection.text_statistics import TextStatistics, count_text, unusual_text


def counted_by_hand(text):
    """Documents as lists of lines, of a text that is UTF-8."""
    documents, lines = [], []
    for line in [*text.split("\n"), ""]:
        line = line.replace("\r", "")
        if line.encode().strip():
            lines.append(line)
        elif lines:
            documents.append(lines)
            lines = []
    return documents


alphabet = st.sampled_from("ab \n\n\r\té中😀\0")


@given(st.text(alphabet, max_size=60), st.integers(1, 9))
def test_figures_are_those_counted_by_hand(tmp_path_factory, text, read_bytes):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_statistics, "READ_BYTES", read_bytes)
        found = count_text(path)
    documents = counted_by_hand(text)
    lines = [line for document in documents for line in document]
    assert found.documents == len(documents)
    assert found.lines == len(lines)
    assert found.characters == sum(map(len, lines))
    assert found.one_line == sum(len(document) == 1 for document in documents)
    assert found.with_null == sum("\0" in line for line in lines)
    assert found.undecodable == 0
    assert len(np.unique(found.hashes)) == len({tuple(document) for document in documents})
    bits = [sum(map(len, document)).bit_length() for document in documents]
    assert found.document_lengths.sum() == len(documents)
    assert all(found.document_lengths[b] == bits.count(b) for b in set(bits))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("é\n".encode() + b"\xff\n\xc3\nplain\n\n\xe4\xb8")
    found = count_text(path)
    assert (found.lines, found.undecodable, found.documents) == (5, 3, 2)


def test_a_line_without_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab" * (3 << 20))
    found = count_text(path)
    assert (found.lines, found.characters, found.long_lines) == (1, 6 << 20, 1)


def said_of(tmp_path, *texts, has_sentences=True):
    total, repeated = TextStatistics(), HashSample()
    for text in texts:
        path = tmp_path / "a.txt"
        path.write_bytes(text)
        found = count_text(path)
        total.add(found)
        repeated.add(found.hashes)
    return list(unusual_text(total, repeated, has_sentences=has_sentences))


def test_what_is_unusual(tmp_path):
    fine = b"".join(b"one %d\ntwo\n\n" % number for number in range(50))
    assert said_of(tmp_path, fine) == []
    [line] = said_of(tmp_path, b"\n \n")
    assert "there is no text" in line
    [line] = said_of(tmp_path, fine, fine)
    assert "50.0% of the documents repeat another one" in line
    [line] = said_of(tmp_path, fine + b"\xff\nx\n")
    assert "1 lines are not UTF-8" in line
    [line] = said_of(tmp_path, fine + b"a\0b\nx\n")
    assert "1 lines contain null bytes" in line
    single = b"\n\n".join(b"one %d" % number for number in range(50))
    [line] = said_of(tmp_path, single)
    assert "100.0% of the documents have a single sentence" in line
    assert said_of(tmp_path, single, has_sentences=False) == []
    [line] = said_of(tmp_path, b"a" * 2001 + b"\nb\n")
    assert "50.0% of the lines have more than 2,000 characters" in line
