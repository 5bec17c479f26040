"""Examples from real files as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.model.config import INPUTS
from bert_tf.records.layouts import UNIQUE_IDS
from bert_tf.records.sequences import SequenceRecords
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.question_answering import windows as squad_features
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.settings import WindowSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.files import PathLike

Batch = dict[str, np.ndarray]


class Sequences(NamedTuple):
    """The examples of a file.

    Attributes:
      features: ``INPUTS`` [N, S] integers, padded to S; labels [N, 1].
      lengths: [N], number of tokens in each.
    """

    features: Mapping[str, np.ndarray]
    lengths: np.ndarray

    @classmethod
    def read(cls, records: SequenceRecords) -> Sequences:
        """Reads all examples."""
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
        """The features of some examples, cut to ``positions`` positions."""
        rows = {name: values[indices] for name, values in self.features.items()}
        return {n: v[:, :positions] if n in INPUTS else v for n, v in rows.items()}

    def spread(self, most: int | None) -> Sequences:
        """At most ``most`` examples, evenly spaced; None selects all."""
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
    """The windows of a SQuAD file, as cut by run_squad.py; keeps records in ``work_dir``.

    ``flag`` named the file. With few positions, strides and questions are shorter than usual.
    """
    usual = WindowSettings()
    stage = squad_features.feature_stage(
        read_squad(path, flag=flag, version_2_with_negative=True, needs_answers=training),
        tokenizer_files=tokenizer_files,
        windows=WindowSettings(
            max_seq_length,
            doc_stride=min(usual.doc_stride, max(1, max_seq_length // 3)),
            max_query_length=min(usual.max_query_length, max(1, max_seq_length // 4)),
        ),
        training=training,
    )
    records = stage.build(work_dir / f"{Path(path).stem}-{max_seq_length}-{training}")
    return Sequences.read(records)
