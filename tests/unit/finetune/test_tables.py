"""Tables: what is read, compared with other readers, and what is refused with its line."""

import bz2
import gzip
import io
import json
import lzma

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from bert_tf.finetune.tables import open_table
from bert_tf.util.errors import UserError


def rows_of(path, **options):
    table = open_table(path, flag="train_file", **options)
    return table.columns, [list(cells) for _, cells in table.rows]


def written(directory, name, content):
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=20)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_csv_is_read_as_by_arrow(tmp_path_factory, rows):
    """Any text in quotes: commas, quotation marks, line ends."""
    lines = [("a", "b"), *rows]
    quoted = ('"' + cell.replace('"', '""') + '"' for row in lines for cell in row)
    pairs = zip(*[iter(quoted)] * 2)
    path = written(tmp_path_factory.mktemp("csv"), "t.csv", "".join(f"{a},{b}\n" for a, b in pairs))
    read = arrow_csv.read_csv(
        path,
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=arrow_csv.ConvertOptions(
            column_types={"a": pyarrow.string(), "b": pyarrow.string()},
            strings_can_be_null=False,
        ),
    )
    expected = [list(row.values()) for row in read.to_pylist()]
    assert rows_of(path) == (("a", "b"), expected)


def test_rows_have_the_lines_where_they_begin(tmp_path):
    path = written(tmp_path, "t.csv", 'text,label\n"two\nlines",x\n\nlast,y\n')
    table = open_table(path, flag="train_file")
    places = [where for where, _ in table.rows]
    assert places == [f"--train_file: line {number} of {path}" for number in (2, 5)]


@pytest.mark.parametrize(("name", "separator"), [("t.csv", ","), ("t.tsv", "\t")])
def test_texts_may_be_long(tmp_path, name, separator):
    text = "word " * 30_000
    path = written(tmp_path, name, f"text{separator}label\n{text}{separator}a\n")
    assert rows_of(path) == (("text", "label"), [[text, "a"]])


def test_quotation_marks_have_no_meaning_in_tsv(tmp_path):
    path = written(tmp_path, "t.tsv", 'text\tlabel\n"a\tx\nb" c\ty\n')
    assert rows_of(path) == (("text", "label"), [['"a', "x"], ['b" c', "y"]])


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_ends_of_lines_and_byte_order_marks(tmp_path, ending):
    content = f"﻿text,label{ending}é,x{ending}"
    assert rows_of(written(tmp_path, "t.csv", content)) == (("text", "label"), [["é", "x"]])


def test_columns_without_a_header_are_numbered(tmp_path):
    path = written(tmp_path, "t.tsv", "a\tb\nc\td\n")
    assert rows_of(path, has_header=False) == (("1", "2"), [["a", "b"], ["c", "d"]])


ROWS = [{"text": "a", "label": 1}, {"text": "b", "label": None}]
CELLS = (("text", "label"), [["a", 1], ["b", None]])


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.json"])
def test_json_lines(tmp_path, name):
    lines = "\n".join(map(json.dumps, ROWS)) + "\n\n"
    assert rows_of(written(tmp_path, name, lines)) == CELLS


def test_a_json_array(tmp_path):
    assert rows_of(written(tmp_path, "t.json", json.dumps(ROWS, indent=1))) == CELLS


def test_parquet(tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "t.parquet", row_group_size=1)
    assert rows_of(tmp_path / "t.parquet") == CELLS


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_compressed(tmp_path, suffix, compress):
    path = written(tmp_path, f"t.CSV.{suffix}", compress(b"a\nb\n"))
    assert rows_of(path) == (("a",), [["b"]])


REFUSED = {
    "unknown ending": ("t.txt", "a", "t.txt is none of .csv, .tsv, .jsonl, .ndjson, .json, .pa"),
    "spreadsheet": ("t.xlsx", "PK", "(of a spreadsheet: as CSV)"),
    "nothing": ("t.csv", "", "t.csv is empty"),
    "empty lines": ("t.csv", "\n\n", "t.csv has no rows"),
    "no objects": ("t.jsonl", "\n", "t.jsonl has no rows"),
    "quote not closed": ("t.csv", 'a,b\n"c,d\ne,f\n', "line 2 of .*t.csv begins a row that cannot"),
    "quote closed by a later one": ("t.csv", 'a,b\n"c,d\n"e,f\n', "line 2 of .*not closed"),
    "quote not doubled": ("t.csv", 'a,b\nc,d\n"e" f,g\n', "line 3 of .*not doubled inside quotes"),
    "more columns": ("t.csv", "a,b\n1,2,3\n", "line 2 of .*t.csv has 3 columns instead of 2"),
    "fewer columns": ("t.tsv", "a\tb\n1\t2\n3\n", "line 3 of .*t.tsv has 1 columns instead of 2"),
    "semicolons": ("t.csv", "a;b\n1;2\n", "separated by semicolons; save it with commas"),
    "tabs": ("t.csv", "a\tb\n1\t2\n", "separated by tabs; .* or name it .tsv"),
    "commas": ("t.tsv", "a,b\n1,2\n", "separated by commas; save it with tabs, or name it .csv"),
    "a column twice": ("t.csv", "a,a\n1,2\n", "has two columns 'a'; rename one"),
    "latin-1": ("t.csv", "a\nb\né\n".encode("latin-1"), "line 3 of .*t.csv is not UTF-8"),
    "utf-16": ("t.csv", "a\nb\n".encode("utf-16"), "t.csv is UTF-16; convert it to UTF-8"),
    "no JSON": ("t.jsonl", '{"a": 1}\n{"a":\n', "line 2 of .*t.jsonl is not valid JSON"),
    "no object": ("t.jsonl", '{"a": 1}\n[2]\n', r"line 2 of .*t.jsonl is \[2\], not a JSON object"),
    "array of others": ("t.json", '[{"a": 1}, 2]', "row 2 of .*t.json is 2, not a JSON object"),
    "nested deeply": ("t.jsonl", "[" * 100_000, "t.jsonl is not valid JSON"),
    "cut archive": ("t.csv.gz", gzip.compress(b"a\nb\n")[:-5], "t.csv.gz cannot be read"),
    "no archive": ("t.csv.xz", "a\nb\n", "t.csv.xz cannot be read"),
    "no Parquet": ("t.parquet", "PAR1", "t.parquet is damaged or no whole Parquet file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_names_the_file_and_the_line(tmp_path, case):
    name, content, said = REFUSED[case]
    path = written(tmp_path, name, content)
    with pytest.raises(UserError, match=f"^--train_file: .*{said}"):
        rows_of(path)


def test_cut_parquet(tmp_path):
    whole = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS * 1000), whole)
    path = written(tmp_path, "t.parquet", whole.getvalue()[:-20])
    with pytest.raises(UserError, match="damaged or no whole Parquet file"):
        rows_of(path)


def test_an_unknown_column_is_answered_with_the_known_ones(tmp_path):
    table = open_table(written(tmp_path, "t.csv", "a,b\n1,2\n"), flag="train_file")
    with pytest.raises(UserError, match=r"--text_column=c: .*no such column; it has 'a', 'b'"):
        table.number_of("c", flag="text_column")
