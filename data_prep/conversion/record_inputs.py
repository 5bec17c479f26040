"""Reads pre-training records in the formats of others, in batches for worker processes.

The formats are TFRecords with the features of google-research/bert (or TensorFlow 2's names for
two of them), JSON lines and Parquet with the same as fields or columns, and the Parquet of NVIDIA's
LDDL.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.durable.executor import batched
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import decode_example, with_standard_names
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.parquet import open_parquet, parquet_batches, rows_of
from data_prep.conversion.lddl import columns_of, examples_from_lddl, is_lddl, lddl_layout
from data_prep.conversion.record_rows import (
    Examples,
    Layout,
    examples_from_batch,
    examples_from_rows,
    layout_of_row,
    spec_of,
)
from data_prep.sources.containers import HEAD_BYTES, Source, open_sources
from data_prep.sources.json_files import begins_with_object, parse, read_json_lines
from data_prep.sources.parquet_files import MAGIC
from data_prep.sources.source_text import as_utf8
from data_prep.text.documents import Decoder

KINDS = RECORDS, JSON_LINES, PARQUET, LDDL = "TFRecords", "JSON lines", "Parquet", "LDDL"
BATCH_RECORDS = 256


class Batch(NamedTuple):
    """Some records of a file.

    Attributes:
      file: its number among the inputs.
      path: its name.
      first: the number of the first record in it, from 0.
      count: of records.
      content: None for TFRecords; numbered lines, or a record batch of Arrow.
    """

    file: int
    path: str
    first: int
    num_records: int
    content: Any

    def name_of(self, row: int) -> str:
        """Names a record in messages."""
        if isinstance(self.content, list):
            return f"line {self.content[row][0]} of {self.path}"
        return f"record {self.first + row} of {self.path}"


class Sizes(NamedTuple):
    """What LDDL's rows do not say."""

    seq_length: int
    max_predictions: int


def kind_of(files: Sequence[Path]) -> str:
    """One of KINDS; raises UserError if the files are of different ones."""
    kinds = {path: _kind_of_file(path) for path in files}
    if len(set(kinds.values())) > 1:
        (first, kind), (other, other_kind) = list(
            {kind: (path, kind) for path, kind in kinds.items()}.values()
        )[:2]
        raise UserError(
            f"--input_file: {first} holds {kind}, but {other} {other_kind}; convert one kind at a "
            "time."
        )
    return next(iter(kinds.values()))


def _kind_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(MAGIC):
        return (
            LDDL if is_lddl(open_parquet(path, flag="input_file").schema_arrow.names) else PARQUET
        )
    if begins_with_object(head) or {".jsonl", ".ndjson"} & set(path.suffixes):
        return JSON_LINES
    return RECORDS


def layout_of(files: Sequence[Path], kind: str, sizes: Sizes) -> tuple[Layout, list[str]]:
    """The layout of the records, and features of the first one that are not part of it.

    Raises UserError if there are no records, or these are not for pre-training.
    """
    if kind == RECORDS:
        info = inspect_records(files)
        record_set = RecordSet([info.first_file])
        names = list(with_standard_names(decode_example(record_set.read([0])[0])))
        layout = Layout(info.spec, {"one": 1, **info.lengths})
        return layout, _others(names, layout)
    for path in files:
        if kind == LDDL:
            opened = open_parquet(path, flag="input_file")
            if opened.metadata.num_rows:
                names = opened.schema_arrow.names
                return lddl_layout(
                    names, seq_length=sizes.seq_length, max_predictions=sizes.max_predictions
                ), []
            continue
        row, where = _first_row(path, kind)
        if row is not None:
            layout = layout_of_row(row, where)
            return layout, _others(with_standard_names(row), layout)
    raise UserError(f"--input_file: {files[0]} contains no records; give files with records.")


def _others(names: Collection[str], layout: Layout) -> list[str]:
    return sorted(set(names) - {feature.name for feature in layout.spec.features})


def _first_row(path: Path, kind: str) -> tuple[dict[str, Any] | None, str]:
    if kind == PARQUET:
        opened = open_parquet(path, flag="input_file")
        names = opened.schema_arrow.names
        batches = parquet_batches(opened, path, names, batch_rows=1, flag="input_file")
        batch = next((batch for batch in batches if len(batch)), None)
        where = f"record 0 of {path}"
        return (rows_of(batch, where, flag="input_file")[0] if batch else None), where
    for batch in itertools.islice(_json_batches(0, path), 1):
        return _json_row(batch, 0), batch.name_of(0)
    return None, ""


def read_batches(files: Sequence[Path], kind: str, layout: Layout) -> Iterator[Batch]:
    """The records of all files, in order; raises UserError if a file has another layout."""
    for number, path in enumerate(files):
        if kind == RECORDS:
            total = len(RecordSet([path]))
            for first in range(0, total, BATCH_RECORDS):
                count = min(BATCH_RECORDS, total - first)
                yield Batch(number, str(path), first, count, None)
        elif kind == JSON_LINES:
            yield from _json_batches(number, path)
        else:
            yield from _parquet_batches(number, path, kind, layout)


def _json_batches(number: int, path: Path) -> Iterator[Batch]:
    sources: Iterator[Source] = open_sources(path, collections.Counter())
    first = 0
    for source in sources:
        stream = as_utf8(source, "utf-8")
        rows = read_json_lines(stream, source.name, "", rows_per_document=1)
        for lines in batched((row.lines[0] for row in rows), BATCH_RECORDS):
            yield Batch(number, source.name, first, len(lines), lines)
            first += len(lines)


def _parquet_batches(number: int, path: Path, kind: str, layout: Layout) -> Iterator[Batch]:
    opened = open_parquet(path, flag="input_file")
    names = opened.schema_arrow.names
    if kind == LDDL:
        if not is_lddl(names):
            raise UserError(f"--input_file: {path} lacks the columns of LDDL's shards.")
        columns = columns_of(names)
    else:
        if spec_of(names, str(path)) != layout.spec:
            raise UserError(
                f"--input_file: some files have stored masks, but not {path}, or the other way "
                "round; convert one kind at a time."
            )
        wanted = {feature.name for feature in layout.spec.features}
        columns = [name for name in names if with_standard_names({name: name}).keys() & wanted]
    first = 0
    batches = parquet_batches(opened, path, columns, batch_rows=BATCH_RECORDS, flag="input_file")
    for batch in batches:
        yield Batch(number, str(path), first, len(batch), batch)
        first += len(batch)


def _json_row(batch: Batch, row: int) -> dict[str, Any]:
    number, line = batch.content[row]
    where = f"line {number} of {batch.path}"
    value = parse(Decoder("error")(line, where), where, numbers=True)
    if not isinstance(value, dict):
        raise UserError(f"--input_file: {where} is not a JSON object; give one record per line.")
    return value


class BatchReader:
    """Turns batches into arrays; one instance per worker process."""

    def __init__(self, kind: str, layout: Layout, tokenizer: Tokenizer | None):
        self._kind = kind
        self._layout = layout
        self._tokenizer = tokenizer
        self._open_records = functools.lru_cache(maxsize=1)(lambda path: RecordSet([path]))

    @functools.cached_property
    def starts_word(self) -> np.ndarray:
        """bool [vocab_size]: whether an entry begins a word; needs a tokenizer."""
        return np.array(self._tokenizer.word_starts(range(self._tokenizer.vocab_size)))

    def __call__(self, batch: Batch) -> Examples:
        """Arrays [N, L] by feature."""
        if self._kind == RECORDS:
            return self._decode(batch)
        if self._kind == JSON_LINES:
            rows = [_json_row(batch, row) for row in range(batch.num_records)]
            return examples_from_rows(rows, self._layout, batch.name_of)
        if self._kind == PARQUET:
            return examples_from_batch(batch.content, self._layout, batch.name_of)
        rows = rows_of(batch.content, batch.name_of(0), flag="input_file")
        return examples_from_lddl(
            rows, self._layout, self._tokenizer, self.starts_word, batch.name_of
        )

    def _decode(self, batch: Batch) -> Examples:
        numbers = range(batch.first, batch.first + batch.num_records)
        rows = []
        for number, record in enumerate(self._open_records(batch.path).read(numbers)):
            try:
                example = self._layout.spec.decode(record)
                lengths = self._layout.spec.lengths_of(example)
            except ValueError as error:
                raise _differs(batch.name_of(number), str(error)) from error
            if lengths != self._layout.lengths:
                raise _differs(batch.name_of(number), "its features have other lengths")
            rows.append(example)
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _differs(name: str, how: str) -> UserError:
    return UserError(f"--input_file: {name} differs from the first ({how}); make the file again.")
