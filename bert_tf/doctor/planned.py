"""What is known of a run before it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.config.settings import OptimizationSettings
from bert_tf.model.config import BertConfig
from bert_tf.records.info import RecordInfo
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer_files import Vocabulary
from bert_tf.train.start_point import StartPoint
from bert_tf.update.batch_plan import BatchPlan, StepPlan

TRAINING, HELD_OUT = "records", "held-out records"


class Records(NamedTuple):
    """Records of pre-training, the part of the run that they are, and their description."""

    part: str
    records: RecordSet
    info: RecordInfo


class Updates(NamedTuple):
    """What is trained; without ``is_counted``, the number of ``steps`` is not known."""

    optimization: OptimizationSettings
    batch: BatchPlan
    steps: StepPlan
    is_counted: bool = True


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A planned run; None for what is not known, or not used by it.

    Attributes:
      is_pretraining: whether it reads records of pre-training.
      output_dir: its directory; with seeds, that of the last one.
      start: where it starts.
      is_new: whether it starts from random weights.
      vocabulary: that of its data.
      config: the network.
      max_seq_length: positions of the longest sequence.
      updates: what it trains.
      records: what it reads, training records first.
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

    @property
    def train_info(self) -> RecordInfo | None:
        """The description of the training records."""
        return next((info for part, _, info in self.records if part == TRAINING), None)
