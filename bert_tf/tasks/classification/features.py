"""Encodes sentences and pairs as records, once per combination of file, vocabulary and length.

Their ``unique_ids`` are row numbers, counted from 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.records.layouts import CLASSIFICATION_PREDICTION, CLASSIFICATION_TRAINING
from bert_tf.records.sequences import Encoded, SequenceStage, TokenSequence, inputs_of, joined
from bert_tf.tasks.classification.texts import CUT_OFF, WINDOWS, Label, LongTexts, Row, TextFile
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError

VERSION = 1  # goes up when the records of equal input change


def feature_stage(
    file: TextFile,
    *,
    tokenizer_files: TokenizerFiles,
    max_seq_length: int,
    training: bool,
    long_texts: LongTexts = CUT_OFF,
    num_workers: int = 0,
) -> SequenceStage:
    """The stage that makes the records of a file.

    The ``counts`` of the records are ``examples``, and ``cut_examples``, the number of those with
    more tokens than positions. For training, records include labels, which all rows have. Raises
    UserError if the length is too small.
    """
    task = file.task
    check_length(task.name, len(task.sentences), max_seq_length)
    parameters = {"task": task.name, "max_seq_length": max_seq_length, "training": training}
    return SequenceStage(
        task.stage,
        file.paths,
        tokenizer_files,
        {**parameters, **task.parameters, **long_texts.parameters},
        CLASSIFICATION_TRAINING if training else CLASSIFICATION_PREDICTION,
        VERSION,
        file.rows,
        RowEncoder(max_seq_length, task.num_targets, long_texts),
        unit="examples",
        total=len(file.rows),
        items_per_batch=256,
        total_per_worker=20_000,
        num_workers=num_workers,
    )


def check_length(name: str, num_sentences: int, max_seq_length: int) -> None:
    """Raises UserError for a length without room for a token of each sentence.

    ``name`` is what the message calls the task.
    """
    least = 1 + 2 * num_sentences
    if max_seq_length < least:
        raise UserError(
            f"--max_seq_length={max_seq_length} has no room for [CLS], [SEP] and "
            f"{name}'s sentences; give at least {least}."
        )


@dataclasses.dataclass(frozen=True)
class RowEncoder:
    """Encodes rows as records (see :class:`bert_tf.records.sequences.Encoder`)."""

    max_seq_length: int
    num_targets: int
    long_texts: LongTexts

    def encode(self, items: Sequence[Row], tokenizer: Tokenizer) -> Encoded:
        """Encodes rows, in order."""
        size = self.max_seq_length
        encoded = [sequences_of(row, tokenizer, size, self.long_texts) for row in items]
        sequences = [sequence for of_row, _ in encoded for sequence in of_row]
        labels = [row.label for row, (of_row, _) in zip(items, encoded) for _ in of_row]
        inputs = inputs_of(sequences, size, tokenizer)
        features = {**inputs, "labels": targets_of(labels, self.num_targets)}
        counts = {"examples": len(items), "cut_examples": sum(is_cut for _, is_cut in encoded)}
        if self.long_texts.long_texts != WINDOWS:
            return Encoded(features, counts)
        per_row = np.array([len(of_row) for of_row, _ in encoded], np.int32)
        return Encoded(features, {**counts, "windows": len(sequences)}, per_row)


def targets_of(labels: Sequence[Label | None], num_targets: int) -> np.ndarray:
    """Labels as in records: float32 [N, num_targets]; texts without a label have zeros."""
    targets = np.zeros((len(labels), num_targets), np.float32)
    for row, label in zip(targets, labels):
        if isinstance(label, tuple):
            row[list(label)] = 1
        else:
            row[0] = label or 0.0
    return targets


def sequences_of(
    row: Row, tokenizer: Tokenizer, max_seq_length: int, long_texts: LongTexts
) -> tuple[list[TokenSequence], bool]:
    """Encodes a row as ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``.

    Returns: token ids and segment ids of each sequence, and whether the row was too long for one.
    """
    parts = [tokenizer.encode(text) for text in row.sentences]
    room = max_seq_length - 1 - len(parts)
    sequences = [joined(kept, tokenizer) for kept in long_texts.cut(parts, room)]
    return sequences, sum(map(len, parts)) > room
