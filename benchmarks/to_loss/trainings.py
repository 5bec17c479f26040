"""A training by any program: its job, and where it writes its checkpoints."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from bert_tf.model.config import BertConfig

PREFIX = "model.ckpt"  # of checkpoints, as in bert_tf.checkpoint.directory, which loads TensorFlow
HUGGINGFACE = "huggingface"  # directories of its checkpoints have this name and the updates


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """The job of a program's process, which receives it as JSON.

    Attributes:
      directory: for checkpoints named ``model.ckpt-UPDATES``, with google's variable names.
      network: the architecture.
      seq_length: tokens per sequence.
      predictions: maximum masked tokens per sequence, unless a program's settings override it.
      data: paths by the names in benchmarks.to_loss.data.
      seed: seed of weights, order, masks and dropout.
      threads: cores to use.
      updates: updates in the whole training.
      stop_after: number of updates after which a timing run ends; None runs all.
      checkpoints: number of evenly spaced checkpoints; 0 for none.
    """

    directory: str
    network: BertConfig
    seq_length: int
    predictions: int
    data: Mapping[str, str]
    seed: int
    threads: int
    updates: int
    stop_after: int | None = None
    checkpoints: int = 0

    @classmethod
    def from_json(cls, job: Mapping[str, Any]) -> TrainingJob:
        """Reads the output of :meth:`to_json`, ignoring other keys."""
        values = {field.name: job[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**values, "network": BertConfig(**job["network"])})

    def to_json(self) -> dict[str, Any]:
        """Converts the job to JSON for the program's process."""
        return dataclasses.asdict(self)

    @property
    def last_update(self) -> int:
        """The update after which training ends."""
        return self.updates if self.stop_after is None else min(self.stop_after, self.updates)

    @property
    def spacing(self) -> int:
        """Number of updates between checkpoints."""
        return spacing(self.updates, self.checkpoints) if self.checkpoints else self.updates

    def checkpoint_path(self, update: int) -> str:
        """The path of the checkpoint after ``update``."""
        return str(Path(self.directory, f"{PREFIX}-{update}"))

    def has_checkpoint_after(self, update: int) -> bool:
        """Whether a checkpoint is due after ``update``."""
        is_due = update % self.spacing == 0 or update == self.last_update
        return bool(self.checkpoints) and is_due


def spacing(updates: int, checkpoints: int) -> int:
    """Updates between ``checkpoints`` evenly spaced checkpoints, the last near the end."""
    return max(1, -(-updates // checkpoints))


def run_updates(
    job: TrainingJob,
    update: Callable[[], float],
    save: Callable[[int], None],
    *,
    started: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Trains; start-up ends with the first update, and saving does not count.

    Args:
      job: the length of the training.
      update: runs one update and returns its loss once it is finished.
      save: writes the checkpoint after an update.
      started: start time of the process, by ``clock``.
      clock: returns the time in seconds.

    Returns:
      ``start_seconds`` and ``points``: ``[updates, seconds of training, mean loss since the point
      before]`` after each checkpoint and after the last update.
    """
    seconds, losses, points = 0.0, [], []
    found: dict[str, Any] = {"points": points}
    for number in range(1, job.last_update + 1):
        start = clock()
        losses.append(update())
        if number == 1:
            found["start_seconds"] = clock() - started
        else:
            seconds += clock() - start
        is_due = job.has_checkpoint_after(number)
        if is_due:
            save(number)
        if is_due or number == job.last_update:
            points.append([number, seconds, sum(losses) / len(losses)])
            losses = []
    return found
