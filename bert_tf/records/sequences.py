"""Records of sequences of different lengths, made once and read in any order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from bert_tf.records.layouts import SEQUENCE, RecordSpec


@dataclasses.dataclass(frozen=True)
class SequenceRecords:
    """Finished records.

    Attributes:
      files: TFRecord files, in the order of the examples.
      lengths: int32 [N], number of tokens of each record without padding.
      sha256: changes when any byte of the records changes.
      spec: layout of the records.
      max_seq_length: positions of a record.
    """

    files: list[Path]
    lengths: np.ndarray
    sha256: str
    spec: RecordSpec
    max_seq_length: int

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def record_lengths(self) -> dict[str, int]:
        """The lengths for ``spec.parse_spec``."""
        return {SEQUENCE: self.max_seq_length}
