"""Encodes sentences and pairs as records, once per combination of file, vocabulary and length.

This is a stage (records/sequences.py): records are written on all cores and kept in a separate
directory with a manifest, so that later runs reuse them. Their ``unique_ids`` are row numbers,
counted from 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np

from bert_tf.durable.executor import Executor, Processes
from bert_tf.durable.stage import Built
from bert_tf.records.layouts import CLASSIFICATION_PREDICTION, CLASSIFICATION_TRAINING, RecordSpec
from bert_tf.records.sequences import (
    EncodedSequences,
    SequenceRecords,
    SequenceStage,
    encode_and_write,
    padded_inputs,
    without_ids,
)
from bert_tf.tasks.classification.long_texts import CUT_OFF, WINDOWS, LongTexts
from bert_tf.tasks.classification.text_task import Label, Row, TextFile, TextTask
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

VERSION = 1  # goes up when the records of equal input change


def feature_stage(
    file: TextFile,
    *,
    tokenizer_files: TokenizerFiles,
    max_seq_length: int,
    training: bool,
    num_workers: int = 0,
    long_texts: LongTexts = CUT_OFF,
    rows_per_batch: int = 256,
    rows_per_worker: int = 20_000,
) -> SequenceStage:
    """The stage that makes the records of a file.

    The ``counts`` of the records are ``examples``, and ``cut_examples``, the number of those with
    more tokens than positions.

    Args:
      file: the rows; for training, all of them have labels.
      tokenizer_files: the tokenizer, which each worker opens.
      max_seq_length: positions per record.
      training: whether records include labels.
      num_workers: maximum number of processes, 0 for one per core; it does not change the records.
      long_texts: what becomes of texts with more tokens than positions.
      rows_per_batch: how many a worker is handed at a time.
      rows_per_worker: fewest rows; encoding these takes about as long as starting a process.

    Raises:
      UserError: if the length is too small or the number of workers invalid.
    """
    check_length(file.task, max_seq_length)
    executor = Processes.of(num_workers, at_most=-(-len(file.rows) // rows_per_worker))
    spec = CLASSIFICATION_TRAINING if training else CLASSIFICATION_PREDICTION
    layout = RowLayout(max_seq_length, without_ids(spec), file.task.num_targets, long_texts)
    encoder = functools.partial(RowEncoder, tokenizer_files.load, layout)
    parameters = {"task": file.task.name, "max_seq_length": max_seq_length, "training": training}
    return SequenceStage(
        file.task.stage,
        file.path,
        tokenizer_files,
        {**parameters, **file.task.parameters, **long_texts.parameters},
        spec,
        version=VERSION,
        write=functools.partial(_write, file, encoder, rows_per_batch, executor),
        more_sources=file.paths[1:],
    )


def build_features(file: TextFile, output_dir: PathLike, **options: Any) -> SequenceRecords:
    """Makes the records of a file in a directory of their own, unless it has them.

    ``options`` and errors are those of :func:`feature_stage` and :meth:`SequenceStage.build`.
    """
    return feature_stage(file, **options).build(output_dir)


def check_length(task: TextTask, max_seq_length: int) -> None:
    """Raises UserError for a length without room for a token of each sentence."""
    least = 1 + 2 * len(task.sentences)
    if max_seq_length < least:
        raise UserError(
            f"--max_seq_length={max_seq_length} has no room for [CLS], [SEP] and "
            f"{task.name}'s sentences; give at least {least}."
        )


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """How rows become records.

    Attributes:
      max_seq_length: positions of a record.
      spec: the features of the records, without their ids.
      num_targets: values of a label.
      long_texts: what becomes of texts with more tokens than positions.
    """

    max_seq_length: int
    spec: RecordSpec
    num_targets: int
    long_texts: LongTexts


class RowEncoder:
    """Encodes rows as records; each worker process has one."""

    def __init__(self, open_tokenizer: Callable[[], Tokenizer], layout: RowLayout):
        """Opens the tokenizer."""
        self._tokenizer = CountingTokenizer(open_tokenizer())
        self._layout = layout

    def __call__(self, rows: Sequence[Row]) -> EncodedSequences:
        """Encodes rows, in order."""
        layout, size = self._layout, self._layout.max_seq_length
        encoded = [sequences_of(row, self._tokenizer, size, layout.long_texts) for row in rows]
        sequences = [sequence for found, _ in encoded for sequence in found]
        labels = [row.label for row, (found, _) in zip(rows, encoded) for _ in found]
        inputs = padded_inputs(
            [ids for ids, _ in sequences],
            size,
            pad_id=self._tokenizer.pad_id,
            segments=[segments for _, segments in sequences],
        )
        features = {**inputs, "labels": targets_of(labels, layout.num_targets)}
        counts = {"examples": len(rows), "cut_examples": sum(is_cut for _, is_cut in encoded)}
        made = EncodedSequences.of(layout.spec, features, counts, self._tokenizer.take())
        if layout.long_texts.long_texts != WINDOWS:
            return made
        per_row = np.array([len(found) for found, _ in encoded], np.int32)
        return made._replace(counts={**counts, "windows": len(sequences)}, records_per_item=per_row)


def targets_of(labels: Sequence[Label | None], num_targets: int) -> np.ndarray:
    """Labels as in records: float32 [N, num_targets]; texts without a label have zeros."""
    found = np.zeros((len(labels), num_targets), np.float32)
    for row, label in zip(found, labels):
        if isinstance(label, tuple):
            row[list(label)] = 1
        else:
            row[0] = label or 0.0
    return found


def sequences_of(
    row: Row, tokenizer: Tokenizer, max_seq_length: int, long_texts: LongTexts
) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Encodes a row as ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``.

    Returns: token ids and segment ids of each sequence, and whether the row was too long for one.
    """
    parts = [tokenizer.encode(text) for text in row.sentences]
    room = max_seq_length - 1 - len(parts)
    sequences = []
    for kept in long_texts.cut(parts, room):
        ids, segments = [tokenizer.cls_id], [0]
        for number, part in enumerate(kept):
            ids += [*part, tokenizer.sep_id]
            segments += [number] * (len(part) + 1)
        sequences.append((ids, segments))
    return sequences, sum(map(len, parts)) > room


def _write(
    file: TextFile,
    make_encoder: Callable[[], RowEncoder],
    rows_per_batch: int,
    executor: Executor,
    directory: Path,
) -> Built:
    return encode_and_write(
        directory,
        file.rows,
        make_encoder,
        items_per_batch=rows_per_batch,
        executor=executor,
        stage=file.task.stage,
        unit="examples",
        total=len(file.rows),
    )
