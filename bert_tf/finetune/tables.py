"""Rows of a table in a file: CSV, TSV, JSON lines or Parquet, read with the place of each row.

CSV is RFC 4180's: cells with commas, quotation marks or line ends are quoted. In TSV, quotation
marks have no special meaning, as in GLUE's files. Text is UTF-8; ``.gz``, ``.bz2`` and ``.xz`` are
decompressed.
"""

from __future__ import annotations

import bz2
import csv
import dataclasses
import functools
import gzip
import io
import itertools
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_tf.util.errors import UserError, first_line, short_repr
from bert_tf.util.files import decode_text, require_file
from bert_tf.util.parquet import open_parquet, parquet_batches, rows_of

_DECOMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_BATCH_ROWS = 1024
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}
_ENDINGS = {",": ".csv", "\t": ".tsv"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

# Where each row is, as messages begin, and its cells, as many as there are columns. JSON and
# Parquet have values that are not text.
Rows = Iterator[tuple[str, Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Table:
    """An opened table.

    Attributes:
      path: the file.
      flag: the flag that named it.
      columns: their names, in the order of the cells; in a file without a header "1", "2", ...
      rows: can be read once. Raises UserError for a malformed row, naming its line; of several
        lines, the first.
    """

    path: Path
    flag: str
    columns: tuple[str, ...]
    rows: Rows

    def number_of(self, column: str, *, flag: str) -> int:
        """The place of a column; UserError, with ``flag`` that named it, if there is none."""
        if column not in self.columns:
            raise UserError(
                f"--{flag}={column}: {self.path} has no such column; it has "
                f"{', '.join(map(short_repr, self.columns))}."
            )
        return self.columns.index(column)


def open_table(path: Path, *, flag: str, has_header: bool = True) -> Table:
    """Opens a table by the ending of its name; text may be compressed.

    ``has_header`` says whether the first line of CSV or TSV has the names of the columns. Raises
    UserError, which names ``flag``, if the file cannot be read, is of another kind, is empty, or
    its header is malformed.
    """
    path = require_file(path, flag=flag)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _DECOMPRESSED:
        suffixes.pop()
    reader = _READERS.get(suffixes[-1] if suffixes else "")
    if reader is None:
        raise UserError(
            f"--{flag}: {path} is none of {', '.join(_READERS)} by its name; save the table in one "
            "of these formats (of a spreadsheet: as CSV), and name it so."
        )
    columns, rows = reader(path, flag, has_header)
    repeated = next((name for name in columns if columns.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"--{flag}: {path} has two columns {short_repr(repeated)}; rename one.")
    return Table(path, flag, tuple(columns), rows)


def _text_of(path: Path, flag: str) -> str:
    open_file = _DECOMPRESSED.get(path.suffix.lower(), open)
    try:
        with open_file(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"--{flag}: {path} cannot be read ({first_line(error)}); make or copy it again."
        ) from error
    if content.startswith(_UTF_16):
        raise UserError(f"--{flag}: {path} is UTF-16; convert it to UTF-8.")
    return decode_text(content, path, flag=flag)


def _read_separated(
    path: Path, flag: str, has_header: bool, separator: str, **dialect: Any
) -> tuple[list[str], Rows]:
    csv.field_size_limit(sys.maxsize)  # of all readers; a text may be longer than its 131,072
    text = io.StringIO(_text_of(path, flag), newline="")
    reader = csv.reader(text, delimiter=separator, strict=True, **dialect)
    rows = _numbered(reader, path, flag)
    first = next(rows, None)
    if first is None:
        raise UserError(f"--{flag}: {path} has no rows.")
    _, cells = first
    columns = [str(number) for number in range(1, 1 + len(cells))]
    if has_header:
        columns = [str(cell).strip() for cell in cells]
    else:
        rows = itertools.chain([first], rows)
    if len(columns) == 1:
        _check_separator(path, flag, columns[0], separator)
    return columns, rows


def _numbered(reader: Any, path: Path, flag: str) -> Rows:
    """The rows of a csv.reader, all of them as long as the first; empty lines are left out."""
    count = 0
    while True:
        where = f"--{flag}: line {reader.line_num + 1} of {path}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{where} begins a row that cannot be read ({error}); is a quotation mark in it "
                "not closed, or not doubled inside quotes?"
            ) from error
        if cells is None:
            return
        count = count or len(cells)
        if cells and len(cells) != count:
            raise UserError(f"{where} has {len(cells)} columns instead of {count}; correct it.")
        if cells:
            yield where, cells


def _check_separator(path: Path, flag: str, column: str, wanted: str) -> None:
    """Raises UserError if the name of the only column has another separator in it."""
    for separator, name in _SEPARATORS.items():
        if separator in column and separator != wanted:
            ending = _ENDINGS.get(separator)
            raise UserError(
                f"--{flag}: the columns of {path} are separated by {name}; save it with "
                f"{_SEPARATORS[wanted]}{f', or name it {ending}.' if ending else '.'}"
            )


def _read_json(path: Path, flag: str, has_header: bool) -> tuple[list[str], Rows]:
    """Objects, one per line or in an array that is the whole file; keys that one lacks are None."""
    del has_header
    objects = list(_objects(_text_of(path, flag), path, flag))
    if not objects:
        raise UserError(f"--{flag}: {path} has no rows.")
    columns = list(dict.fromkeys(name for _, row in objects for name in row))
    return columns, ((where, [row.get(name) for name in columns]) for where, row in objects)


def _objects(text: str, path: Path, flag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    rows: Iterable[tuple[str, Any]]
    if text.lstrip().startswith("["):
        values = enumerate(_parsed(text, f"--{flag}: {path}"), start=1)
        rows = ((f"--{flag}: row {number} of {path}", value) for number, value in values)
    else:
        lines = enumerate(text.split("\n"), start=1)
        places = ((f"--{flag}: line {number} of {path}", line) for number, line in lines)
        rows = ((where, _parsed(line, where)) for where, line in places if line.strip())
    for where, row in rows:
        if not isinstance(row, dict):
            raise UserError(
                f"{where} is {short_repr(row)}, not a JSON object with the columns as keys; "
                "correct it."
            )
        yield where, row


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not valid JSON ({first_line(error)}); give an object per line, or an "
            "array of objects."
        ) from error


def _read_parquet(path: Path, flag: str, has_header: bool) -> tuple[list[str], Rows]:
    del has_header
    opened = open_parquet(path, flag=flag)
    columns = list(opened.schema_arrow.names)

    def rows() -> Rows:
        numbers = itertools.count(1)
        for batch in parquet_batches(opened, path, columns, batch_rows=_BATCH_ROWS, flag=flag):
            for values in rows_of(batch, str(path), flag=flag):
                where = f"--{flag}: row {next(numbers)} of {path}"
                yield where, [values[name] for name in columns]

    return columns, rows()


_READERS: dict[str, Callable[[Path, str, bool], tuple[list[str], Rows]]] = {
    ".csv": functools.partial(_read_separated, separator=","),
    ".tsv": functools.partial(_read_separated, separator="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
