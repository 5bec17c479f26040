"""Stops a run whose updates are not finite."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import DEFAULT_MAX_SKIPPED
from bert_tf.model.task import Features, Network
from bert_tf.train.hooks import Fetched, StepHook
from bert_tf.train.job import Job
from bert_tf.update.train_op import TrainOutputs
from bert_tf.util.errors import UserError


class NonFiniteError(UserError):
    """Raised when too many consecutive updates were not finite."""

    def __init__(self, facts: str) -> None:
        """``facts`` is what was found out, as the beginning of a sentence."""
        super().__init__(
            f"{facts}; no weight was changed by it: lower --learning_rate or check the data and "
            "the initial weights, then run again to resume from the last checkpoint."
        )


class NonFiniteGuard(StepHook):
    """Stops a run that does not recover after too many consecutive skipped updates."""

    def __init__(
        self, outputs: TrainOutputs, job: Job, network: Network, features: Features
    ) -> None:
        """``network`` and ``features`` belong to the update that is examined before a stop."""
        super().__init__(outputs)
        default_limit = DEFAULT_MAX_SKIPPED if job.arithmetic.scales_loss else 1
        self._limit = job.settings.recovery.max_skipped_updates or default_limit
        self._job = job
        self._network = network
        self._features = dict(features)
        self._in_a_row = 0

    def fetches(self) -> dict[str, object]:
        # On a CPU, fetching what an update reads anyway requires no copy.
        return {
            "data_position": self.outputs.data_position,
            "loss_scale": self.outputs.loss_scale,
            "rate": self.outputs.learning_rate,
            "features": self._features,
        }

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> None:
        self._in_a_row = 0 if applied else self._in_a_row + 1
        if self._in_a_row < self._limit:
            return
        from bert_tf.diagnose.nonfinite import SkippedUpdate, explain

        skipped = SkippedUpdate(
            step=self.step,
            data_position=int(fetched["data_position"]),
            in_a_row=self._in_a_row,
            learning_rate=float(fetched["rate"]),
            loss_scale=float(fetched["loss_scale"]),
            features=fetched["features"],
        )
        raise NonFiniteError(explain(self._job, self._network, session, skipped))
