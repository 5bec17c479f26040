"""The objective of a pre-training run: BERT's two heads, or the one in its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from bert_tf.model.config import BertConfig
from bert_tf.model.flops import training_flops
from bert_tf.model.task import Task
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.pretraining.task import PretrainingTask


class Objective(Protocol):
    """A pre-training objective; the rest of a run does not depend on it."""

    def task(self, config: BertConfig, *, sentence_order: bool) -> Task:
        """The task for a network; ``sentence_order``: pairs are labelled for SOP instead of NSP."""

    def training_flops(self, config: BertConfig, *, length: int, predictions: int) -> float:
        """FLOPs of training on one sequence with ``predictions`` masks (see ``model.flops``)."""

    def ledger(self, config: BertConfig) -> Mapping[str, Mapping[str, Any]]:
        """Additional sections of the run's ledger."""


@dataclasses.dataclass(frozen=True)
class BertObjective:
    """Masked LM and next-sentence prediction; implements :class:`Objective`.

    Attributes:
      masked_lm, next_sentence: which heads are used.
    """

    masked_lm: bool
    next_sentence: bool

    def task(self, config: BertConfig, *, sentence_order: bool) -> PretrainingTask:
        """The task with these heads."""
        return PretrainingTask(
            config, self.masked_lm, self.next_sentence, sentence_order=sentence_order
        )

    def training_flops(self, config: BertConfig, *, length: int, predictions: int) -> float:
        """FLOPs of one network with these heads."""
        return training_flops(
            config,
            length=length,
            predictions=predictions if self.masked_lm else 0,
            next_sentence=self.next_sentence,
        )

    def ledger(self, config: BertConfig) -> Mapping[str, Mapping[str, Any]]:
        """Empty: the ledger describes the network anyway."""
        del config
        return {}


def objective_of(settings: PretrainingSettings) -> Objective:
    """The objective of a run with these settings."""
    return settings.objective or BertObjective(settings.masked_lm, settings.next_sentence)
