"""Which texts are read from files and tables, and which belong to a sample."""

import pytest

from bert_tf.tasks.scoring.sequences import read_texts, sampled
from bert_tf.tasks.scoring.settings import TextSettings
from bert_tf.util.errors import UserError


def read(path, content, **settings):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_texts([path], TextSettings(**settings), flag="input_file")


def test_a_line_or_a_document_is_a_text(tmp_path):
    content = "\ufeffone\ntwo\r\n\n \nthree\u2028four"
    path = tmp_path / "texts.txt"
    assert read(path, content) == ["one", "two", "three\u2028four"]
    assert read(path, content, text_unit="document") == ["one two", "three\u2028four"]


def test_columns_of_tables(tmp_path):
    tsv = 'id\ttext\n1\tsaid "so"\n2\t\n'
    assert read(tmp_path / "a.tsv", tsv, text_column="text") == ['said "so"', ""]
    assert read(tmp_path / "a.tsv", tsv, text_column="2") == ["text", 'said "so"', ""]
    csv = 'id,text\n1,"a, ""b""\nc"\n\n2,d\n'
    assert read(tmp_path / "a.csv", csv, text_column="text") == ['a, "b"\nc', "d"]


def test_markers_of_wikitext(tmp_path):
    content = "60 @,@ 000 ( 0 @.@ 7 ) old @-@ <unk> a@b"
    path = tmp_path / "texts.txt"
    assert read(path, content) == [content]
    assert read(path, content, wikitext=True) == ["60,000 ( 0.7 ) old-<unk> a@b"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "sentence"),
    [
        ("a.txt", b"one\ntwo \xff\n", {}, r"line 2 of \S+ is not UTF-8; convert the file\."),
        ("a.txt", "", {}, "is empty"),
        ("a.txt", " \n\n", {}, "contains no text; give a file with text"),
        (
            "a.tsv",
            "id\ttext\n",
            {"text_column": "body"},
            "--text_column=body: .* but id, text; give",
        ),
        ("a.tsv", "a\tb\nc\n", {"text_column": "2"}, "line 2 of .* has 1 columns, and no column 2"),
        ("a.tsv", "a\tb\n", {"text_column": "0"}, "columns are counted from 1"),
        ("a.csv", 'text\n"a" b\n', {"text_column": "text"}, "line 2 of .* is not CSV"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, content, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path / name, content, **settings)


def test_a_sample_has_the_requested_size_whatever_the_seed():
    contents = [str(number).encode() for number in range(500)]
    for seed in range(20):
        assert sampled(contents, fraction=0.1, seed=seed).sum() == 50
    assert sampled(contents, fraction=0.0001, seed=0).sum() == 1
    assert sampled(contents, fraction=1.0, seed=0).all()
    assert sampled([], fraction=0.5, seed=0).shape == (0,)


def test_a_sample_depends_on_each_text_and_the_seed_alone():
    contents = [str(number).encode() for number in range(4000)]

    def taken(contents, fraction, seed):
        is_taken = sampled(contents, fraction=fraction, seed=seed)
        return {content for content, taken in zip(contents, is_taken) if taken}

    small, large = (taken(contents, fraction, 1) for fraction in (0.1, 0.3))
    assert small < large
    assert taken(contents[::-1], 0.1, 1) == small
    assert len(small & taken(contents, 0.1, 2)) == pytest.approx(40, abs=30)
