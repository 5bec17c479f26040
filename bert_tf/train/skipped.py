"""An update that was skipped because it was not finite, and the error of too many in a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from bert_tf.util.errors import UserError


@dataclasses.dataclass(frozen=True)
class SkippedUpdate:
    """An update that was not applied, on this rank.

    Attributes:
      step: updates applied before it.
      data_position: the number of its global batch.
      in_a_row: updates skipped since the last applied one, with this one.
      consumed_sequences: those consumed since the run began, with its global batch.
      learning_rate, loss_scale: those of the update.
      features: this rank's part of the global batch.
    """

    step: int
    data_position: int
    in_a_row: int
    consumed_sequences: int
    learning_rate: float
    loss_scale: float
    features: Mapping[str, np.ndarray]


class NonFiniteError(UserError):
    """Too many updates in a row were not finite.

    Attributes:
      skipped: the last of them.
      facts: what was found out, the beginning of a sentence.
      advice: what a user can do, the end of a sentence.
    """

    advice = (
        "lower --learning_rate or check the data and the initial weights, then run again to resume "
        "from the last checkpoint."
    )

    def __init__(self, skipped: SkippedUpdate, facts: str) -> None:
        super().__init__(f"{facts}; no weight was changed by it: {self.advice}")
        self.skipped = skipped
        self.facts = facts
