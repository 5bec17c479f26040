"""What is known about a run before it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.config.settings import OptimizationSettings
from bert_tf.input.mixture import Mixture
from bert_tf.model.config import BertConfig
from bert_tf.records.info import RecordInfo
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer_files import Vocabulary
from bert_tf.train.start_point import StartPoint
from bert_tf.update.batch_plan import BatchPlan, StepPlan

TRAINING, HELD_OUT = "records", "held-out records"


class Records(NamedTuple):
    """Pre-training records, with the part of the run that they are, and their description."""

    part: str
    records: RecordSet
    info: RecordInfo


class Updates(NamedTuple):
    """The planned updates; unless ``is_counted``, the number of ``steps`` is unknown."""

    optimization: OptimizationSettings
    batch: BatchPlan
    steps: StepPlan
    is_counted: bool = True


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A planned run; attributes are None if unknown or not used.

    Attributes:
      is_pretraining: whether it reads pre-training records.
      output_dir: its output directory; with several seeds, the last one's.
      start: where it starts.
      is_new: whether it starts from random weights.
      vocabulary: the vocabulary of its data.
      config: the network's configuration.
      max_seq_length: length of the longest sequence.
      updates: its updates.
      records: the records that it reads, training records first.
      mixture: the sources of the training records, if these have weights.
    """

    is_pretraining: bool
    output_dir: Path | None
    start: StartPoint
    is_new: bool
    vocabulary: Vocabulary | None
    config: BertConfig | None
    max_seq_length: int
    updates: Updates | None
    records: Sequence[Records] = ()
    mixture: Mixture | None = None

    @property
    def train_info(self) -> RecordInfo | None:
        """The description of the training records."""
        return next((info for part, _, info in self.records if part == TRAINING), None)
