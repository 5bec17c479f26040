"""Writes pre-training records in the formats of others; encoding is done by worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bert_tf.records.layouts import ALTERNATIVE_NAMES, ONE
from bert_tf.records.tfrecord import FramedRecords, TFRecordWriter, frame_records
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.files import OFFSETS_SUFFIX
from bert_tf.util.parquet import import_parquet
from data_prep.conversion.record_masks import original_ids
from data_prep.conversion.record_rows import Examples, Layout

RECORDS, GOOGLE, TF2 = "records", "google", "tf2"
JSON_LINES, PARQUET, TEXT = "jsonl", "parquet", "text"
FORMATS = (RECORDS, GOOGLE, TF2, JSON_LINES, PARQUET, TEXT)
TFRECORDS = (RECORDS, GOOGLE, TF2)
_SUFFIXES = {JSON_LINES: ".jsonl", PARQUET: ".parquet", TEXT: ".txt"}
_ROW_GROUP_ROWS = 8192


def encode(examples: Examples, layout: Layout, target: str, tokenizer: Tokenizer | None) -> Any:
    """What a :class:`Writer` of this format writes for examples [N, L]; TEXT needs a tokenizer."""
    spec = layout.spec
    if target == TF2:
        renamed = tuple(
            dataclasses.replace(feature, name=ALTERNATIVE_NAMES.get(feature.name, feature.name))
            for feature in spec.features
        )
        spec = dataclasses.replace(spec, features=renamed)
        examples = {ALTERNATIVE_NAMES.get(name, name): v for name, v in examples.items()}
    if target in TFRECORDS:
        return frame_records(spec.encode_batch(examples))
    ordered = {feature.name: examples[feature.name] for feature in spec.features}
    if target == TEXT:
        return _text(examples, layout, tokenizer).encode("utf-8")
    columns = {
        feature.name: values[:, 0] if feature.length_key == ONE else values
        for feature, values in zip(spec.features, ordered.values())
    }
    if target == PARQUET:
        return {
            name: values.astype(np.int32) if values.dtype == np.int64 else values
            for name, values in columns.items()
        }
    rows = zip(*(values.tolist() for values in columns.values()))
    return "".join(f"{json.dumps(dict(zip(columns, row)))}\n" for row in rows).encode("ascii")


def _text(examples: Examples, layout: Layout, tokenizer: Tokenizer) -> str:
    """A segment a line; a blank line after a record, and before text that does not follow."""
    ids = original_ids(examples) if layout.has_masks else examples["input_ids"]
    lengths = examples["input_mask"].sum(axis=1)
    is_random = examples["next_sentence_labels"][:, 0] == 1
    lines = []
    for row, length, breaks in zip(ids.tolist(), lengths.tolist(), is_random.tolist()):
        segments: list[list[int]] = [[]]
        for token in row[:length]:
            if token == tokenizer.sep_id:
                segments.append([])
            elif token not in (tokenizer.cls_id, tokenizer.pad_id):
                segments[-1].append(token)
        for segment in filter(None, segments):
            lines.append(tokenizer.decode(segment))
            if breaks:
                lines.append("")
        if not breaks:
            lines.append("")
    return "".join(f"{line}\n" for line in lines)


class Writer:
    """Writes one file of a format; a context manager.

    Attributes:
      outputs: the names of the files written, each with its number of records, or None.
    """

    def __init__(self, directory: Path, stem: str, target: str, layout: Layout):
        self._target = target
        self._layout = layout
        self._path = directory / (stem + _SUFFIXES.get(target, ".tfrecord"))
        self._records = 0
        self._buffered: list[dict[str, np.ndarray]] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Writer:
        if self._target in TFRECORDS:
            self._file: Any = self._open.enter_context(TFRecordWriter(self._path))
        elif self._target == PARQUET:
            writer = import_parquet().ParquetWriter(
                str(self._path), _schema(self._layout), write_page_checksum=True
            )
            self._file = self._open.enter_context(writer)
        else:
            self._file = self._open.enter_context(self._path.open("wb"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush()
        self._open.__exit__(kind, error, traceback)

    @property
    def outputs(self) -> dict[str, int | None]:
        """The files' names, the first with its number of records."""
        name = self._path.name
        offsets = {name + OFFSETS_SUFFIX: None} if self._target in TFRECORDS else {}
        return {name: self._records, **offsets}

    def write(self, content: Any, count: int) -> None:
        """Appends what :func:`encode` made of ``count`` records."""
        self._records += count
        if isinstance(content, FramedRecords):
            self._file.write_framed(content)
        elif self._target == PARQUET:
            self._buffered.append(content)
            if sum(map(_num_rows, self._buffered)) >= _ROW_GROUP_ROWS:
                self._flush()
        else:
            self._file.write(content)

    def _flush(self) -> None:
        if not self._buffered:
            return
        import pyarrow

        schema = _schema(self._layout)
        arrays = []
        for field in schema:
            values = np.concatenate([part[field.name] for part in self._buffered])
            if values.ndim == 1:
                arrays.append(pyarrow.array(values, field.type))
            else:
                starts = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
                flat = pyarrow.array(values.ravel(), field.type.value_type)
                arrays.append(pyarrow.ListArray.from_arrays(starts, flat, field.type))
        self._file.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        self._buffered.clear()


def _num_rows(columns: dict[str, np.ndarray]) -> int:
    return len(next(iter(columns.values())))


def _schema(layout: Layout) -> Any:
    """Parquet's schema: lists of numbers, or numbers for features with one value."""
    import pyarrow

    fields = []
    for feature in layout.spec.features:
        kind = pyarrow.float32() if feature.dtype == "float32" else pyarrow.int32()
        is_one = feature.length_key == ONE
        fields.append(
            pyarrow.field(feature.name, kind if is_one else pyarrow.list_(kind), nullable=False)
        )
    return pyarrow.schema(fields)
