"""Encodes sentences and pairs as records, once per combination of file, vocabulary and length.

This is a stage (records/sequences.py): records are written on all cores and kept in a separate
directory with a manifest, so that later runs reuse them. Their ``unique_ids`` are row numbers from
0.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np

from bert_tf.records.layouts import CLASSIFICATION_PREDICTION, CLASSIFICATION_TRAINING, RecordSpec
from bert_tf.records.sequences import (
    EncodedSequences,
    SequenceRecords,
    SequenceStage,
    encode_and_write,
    padded,
    without_ids,
)
from bert_tf.stages.executor import Executor, Processes
from bert_tf.stages.stage import Built
from bert_tf.tasks.classification.text_task import Label, Row, TextFile, TextTask
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

VERSION = 1  # goes up when the records of equal input change

_ROWS_PER_BATCH = 256
_ROWS_PER_WORKER = 20_000  # encoding them takes about as long as starting a process


def feature_stage(
    file: TextFile,
    *,
    tokenizer_files: TokenizerFiles,
    max_seq_length: int,
    training: bool,
    num_workers: int = 0,
) -> SequenceStage:
    """The stage that makes the records of a file.

    The ``counts`` of the records are ``examples``, and ``cut_examples`` for those with more tokens
    than positions.

    Args:
      file: the rows; for training, all of them have labels.
      tokenizer_files: the tokenizer, which each worker opens.
      max_seq_length: positions per record.
      training: whether records include labels.
      num_workers: maximum number of processes, 0 for one per core; it does not change the records.

    Raises:
      UserError: an impossible length or number of workers.
    """
    check_length(file.task, max_seq_length)
    executor = Processes.of(num_workers, at_most=-(-len(file.rows) // _ROWS_PER_WORKER))
    spec = CLASSIFICATION_TRAINING if training else CLASSIFICATION_PREDICTION
    encoder = functools.partial(
        RowEncoder, tokenizer_files.load, max_seq_length, without_ids(spec), file.task.num_targets
    )
    parameters = {"task": file.task.name, "max_seq_length": max_seq_length, "training": training}
    return SequenceStage(
        file.task.stage,
        file.path,
        tokenizer_files,
        {**parameters, **file.task.parameters},
        spec,
        version=VERSION,
        write=functools.partial(_write, file, encoder, executor),
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


class RowEncoder:
    """Encodes rows as records; each worker process has one."""

    def __init__(
        self,
        open_tokenizer: Callable[[], Tokenizer],
        max_seq_length: int,
        spec: RecordSpec,
        num_targets: int = 1,
    ):
        """Opens the tokenizer.

        ``spec`` defines the features of the records, ``num_targets`` the values of a label.
        """
        self._tokenizer = open_tokenizer()
        self._max_seq_length = max_seq_length
        self._spec = spec
        self._num_targets = num_targets

    def __call__(self, rows: Sequence[Row]) -> EncodedSequences:
        """Encodes rows, in order."""
        size = self._max_seq_length
        encoded = [sequence_of(row, self._tokenizer, size) for row in rows]
        ids, segments, are_cut = map(list, zip(*encoded))
        features = {
            "input_ids": padded(ids, size, fill=self._tokenizer.pad_id),
            "input_mask": padded([[1] * len(row) for row in ids], size),
            "segment_ids": padded(segments, size),
            "labels": targets_of([row.label for row in rows], self._num_targets),
        }
        counts = {"examples": len(rows), "cut_examples": sum(are_cut)}
        return EncodedSequences.of(self._spec, features, counts)


def targets_of(labels: Sequence[Label | None], num_targets: int) -> np.ndarray:
    """Labels as in records: float32 [N, num_targets]; texts without a label have zeros."""
    found = np.zeros((len(labels), num_targets), np.float32)
    for row, label in zip(found, labels):
        if isinstance(label, tuple):
            row[list(label)] = 1
        else:
            row[0] = label or 0.0
    return found


def sequence_of(
    row: Row, tokenizer: Tokenizer, max_seq_length: int
) -> tuple[list[int], list[int], bool]:
    """Encodes a row as ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``.

    Sequences that are too long repeatedly lose the last token of the longer sentence, as in
    google-research/bert.

    Returns: token ids, segment ids, and whether tokens were cut off.
    """
    parts = [tokenizer.encode(text) for text in row.sentences]
    excess = sum(map(len, parts)) - (max_seq_length - 1 - len(parts))
    for _ in range(excess):
        max(reversed(parts), key=len).pop()
    ids, segments = [tokenizer.cls_id], [0]
    for number, part in enumerate(parts):
        ids += [*part, tokenizer.sep_id]
        segments += [number] * (len(part) + 1)
    return ids, segments, excess > 0


def _write(
    file: TextFile,
    make_encoder: Callable[[], RowEncoder],
    executor: Executor,
    directory: Path,
) -> Built:
    return encode_and_write(
        directory,
        file.rows,
        make_encoder,
        items_per_batch=_ROWS_PER_BATCH,
        executor=executor,
        stage=file.task.stage,
        unit="examples",
        total=len(file.rows),
    )
