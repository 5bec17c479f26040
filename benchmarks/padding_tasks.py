"""What padding is measured on: real files as arrays, with their networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.task import Task
from bert_tf.records.layouts import UNIQUE_IDS
from bert_tf.records.sequences import SequenceRecords
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.classification import features as glue_features
from bert_tf.tasks.classification.formats import DEV, GLUE_TASKS, TRAIN, find_split, read_glue
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.question_answering import features as squad_features
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.windows import WindowSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.files import PathLike

Batch = dict[str, np.ndarray]


class Sequences(NamedTuple):
    """A file's examples.

    Attributes:
      features: ``INPUTS`` [N, S] integers, padded to S; labels [N, 1].
      lengths: [N], the tokens of each.
    """

    features: Mapping[str, np.ndarray]
    lengths: np.ndarray

    @classmethod
    def read(cls, records: SequenceRecords) -> Sequences:
        """All of them."""
        decoded = map(records.spec.decode, RecordSet(records.files).read(range(len(records))))
        columns: dict[str, list[np.ndarray]] = {}
        for example in decoded:
            for name, values in example.items():
                columns.setdefault(name, []).append(values)
        del columns[UNIQUE_IDS.name]
        types = {np.dtype(np.int64): np.int32}
        features = {n: np.array(c, types.get(c[0].dtype, c[0].dtype)) for n, c in columns.items()}
        return cls(features, records.lengths)

    def batch(self, indices: np.ndarray, positions: int) -> Batch:
        """The features of some of them, cut to so many positions."""
        rows = {name: values[indices] for name, values in self.features.items()}
        return {n: v[:, :positions] if n in INPUTS else v for n, v in rows.items()}

    def spread(self, most: int | None) -> Sequences:
        """So many of them, evenly spread; all where there are no more, and for None."""
        total = len(self.lengths)
        kept = total if most is None else min(most, total)
        rows = np.arange(kept) * total // kept
        features = {name: values[rows] for name, values in self.features.items()}
        return Sequences(features, self.lengths[rows])


@dataclasses.dataclass(frozen=True)
class Case:
    """A fine-tuning with real data.

    Attributes:
      name: in tables.
      max_seq_length: positions that the padded form has.
      batch_size: sequences of an update and of a prediction.
      train, dev: what to learn and what to predict.
      task: from the network's configuration to what is trained and predicted.
    """

    name: str
    max_seq_length: int
    batch_size: int
    train: Sequences
    dev: Sequences
    task: Callable[[BertConfig], Task]


def squad_windows(
    path: PathLike,
    *,
    flag: str,
    training: bool,
    tokenizer_files: TokenizerFiles,
    work_dir: Path,
    max_seq_length: int,
) -> Sequences:
    """A SQuAD file in the windows of run_squad.py; records are kept in ``work_dir``.

    ``flag`` named the file. Few positions make steps and questions shorter than usual.
    """
    usual = WindowSettings()
    records = squad_features.build_features(
        read_squad(path, flag=flag, version_2_with_negative=True, needs_answers=training),
        work_dir / f"{Path(path).stem}-{max_seq_length}-{training}",
        tokenizer_files=tokenizer_files,
        windows=WindowSettings(
            max_seq_length,
            doc_stride=min(usual.doc_stride, max(1, max_seq_length // 3)),
            max_query_length=min(usual.max_query_length, max(1, max_seq_length // 4)),
        ),
        training=training,
    )
    return Sequences.read(records)


def squad_case(
    train_file: PathLike, dev_file: PathLike, *, max_seq_length: int, batch_size: int, **how: Any
) -> Case:
    """SQuAD; ``how`` has further arguments of :func:`squad_windows`."""
    how["max_seq_length"] = max_seq_length
    train = squad_windows(train_file, flag="squad_train_file", training=True, **how)
    dev = squad_windows(dev_file, flag="squad_predict_file", training=False, **how)
    return Case("squad", max_seq_length, batch_size, train, dev, SpanTask)


def glue_case(
    name: str,
    glue_dir: Path,
    *,
    tokenizer_files: TokenizerFiles,
    work_dir: Path,
    max_seq_length: int,
    batch_size: int,
) -> Case:
    """A task of GLUE, in the records of run_classifier.py, which are kept in ``work_dir``."""
    glue = GLUE_TASKS[name]

    def read(split: str) -> Sequences:
        path = find_split(glue, glue_dir / glue.name, split, flag="glue_dir")
        file = read_glue(glue, path, flag="glue_dir", needs_labels=True)
        records = glue_features.build_features(
            file,
            work_dir / f"{name}-{split}-{max_seq_length}",
            tokenizer_files=tokenizer_files,
            max_seq_length=max_seq_length,
            training=split == TRAIN,
        )
        return Sequences.read(records)

    def task(config: BertConfig) -> Task:
        return ClassificationTask(config, glue.num_outputs)

    return Case(name, max_seq_length, batch_size, read(TRAIN), read(DEV), task)
