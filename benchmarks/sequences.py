"""Examples of real files as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.model.config import INPUTS
from bert_tf.records.layouts import UNIQUE_IDS
from bert_tf.records.sequences import SequenceRecords
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.question_answering import features as squad_features
from bert_tf.tasks.question_answering.examples import read_squad
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
