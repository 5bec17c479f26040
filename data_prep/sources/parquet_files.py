"""Reads a column of text from Parquet files, in pieces; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.util.errors import UserError
from bert_tf.util.parquet import open_parquet, parquet_batches
from data_prep.sources.json_files import paragraphs_in
from data_prep.text.documents import Decoder

MAGIC = b"PAR1"
_BATCH_ROWS = 256
_SHOWN_COLUMNS = 8


class ParquetRows(NamedTuple):
    """Rows of a file that make one document.

    Attributes:
      name: of the file, for messages.
      first_row: number of the first, from 0.
      values: their text in UTF-8: bytes, a list of bytes, or None.
    """

    name: str
    first_row: int
    values: list[Any]

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return sum(len(value) for value in self.values if isinstance(value, bytes))

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of the document."""
        paragraphs: list[str] = []
        for number, value in enumerate(self.values, self.first_row):
            where = f"row {number} of {self.name}"
            parts = value if isinstance(value, list) else [value]
            texts = [decode(part, where) if isinstance(part, bytes) else part for part in parts]
            paragraphs += paragraphs_in(None if texts == [None] else texts, where)
        yield paragraphs


def read_parquet(path: Path, column: str, *, rows_per_document: int) -> Iterator[ParquetRows]:
    """The documents of a Parquet file; memory is that of some of its pages."""
    first, values = 0, []
    for value in _values(path, column):
        values.append(value)
        if len(values) == rows_per_document:
            yield ParquetRows(str(path), first, values)
            first, values = first + len(values), []
    if values:
        yield ParquetRows(str(path), first, values)


def _values(path: Path, column: str) -> Iterator[Any]:
    opened = open_parquet(path, flag="input_file")
    names = opened.schema_arrow.names
    if column not in names:
        raise UserError(
            f"--text_field={column}: {path} has no such column, but "
            f"{', '.join(f'{name:.40}' for name in names[:_SHOWN_COLUMNS])}; give the column with "
            "the text."
        )
    batches = parquet_batches(opened, path, [column], batch_rows=_BATCH_ROWS, flag="input_file")
    for batch in batches:
        yield from _bytes_of_text(batch.column(0)).to_pylist()


def _bytes_of_text(column: Any) -> Any:
    """An Arrow array with bytes in place of text, which may not be UTF-8."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    types, kind = pyarrow.types, column.type
    if _is_text(kind):
        return column.cast(_binary(kind))
    # Compared by their values' type: writers name the field for the values in different ways.
    if (types.is_list(kind) or types.is_large_list(kind)) and _is_text(kind.value_type):
        list_of = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return column.cast(list_of(_binary(kind.value_type)))
    return column


def _is_text(kind: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _binary(kind: Any) -> Any:
    import pyarrow

    return pyarrow.binary() if pyarrow.types.is_string(kind) else pyarrow.large_binary()
