"""A skipped update, whose gradients were not finite, and the error for too many in a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from bert_tf.util.errors import UserError


@dataclasses.dataclass(frozen=True)
class SkippedUpdate:
    """An update that was not applied, as seen by this rank.

    Attributes:
      step: number of updates applied before it.
      data_position: the number of its global batch.
      in_a_row: number of consecutive skipped updates, including this one.
      consumed_sequences: sequences consumed since the run began, including this global batch.
      learning_rate, loss_scale: the values in this update.
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
    """Raised when too many consecutive updates were not finite."""

    def __init__(self, facts: str) -> None:
        """``facts`` is what was found out, as the beginning of a sentence."""
        super().__init__(
            f"{facts}; no weight was changed by it: lower --learning_rate or check the data and "
            "the initial weights, then run again to resume from the last checkpoint."
        )
