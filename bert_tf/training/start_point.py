"""Where a run resumes, including from checkpoints without this toolkit's counters.

Checkpoints of google-research/bert, and of this toolkit before it counted sequences, only contain
the number of applied updates. That is enough: the other counts follow from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import newest_checkpoint
from bert_tf.checkpoint.run_record import read_run_record
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint
from bert_tf.errors import UserError, first_line
from bert_tf.update.train_op import CONSUMED_SEQUENCES, SKIPPED_UPDATES

# Counters that a checkpoint may lack.
COUNTS = frozenset({SKIPPED_UPDATES, CONSUMED_SEQUENCES})


@dataclasses.dataclass(frozen=True)
class StartPoint:
    """Where a run starts or resumes.

    Attributes:
      checkpoint: None in a directory without one.
      step: number of applied updates.
      data_position: number of updates that consumed data.
      consumed_sequences: sequences consumed by them; None if the checkpoint does not record it.
      global_batch_size: their global batch according to the directory's run.json, if the checkpoint
        does not record the sequences; None if unknown.
    """

    checkpoint: str | None
    step: int
    data_position: int
    consumed_sequences: int | None
    global_batch_size: int | None = None

    def consumed(self, global_batch_size: int) -> int:
        """The sequences consumed, assuming ``global_batch_size`` if none was recorded."""
        if self.consumed_sequences is None:
            return self.data_position * (self.global_batch_size or global_batch_size)
        return self.consumed_sequences

    def assumption(self, global_batch_size: int) -> str | None:
        """A sentence on how :meth:`consumed` was computed; None if the checkpoint records it."""
        if self.consumed_sequences is not None:
            return None
        batch = self.global_batch_size or global_batch_size
        source = "as recorded in run.json" if self.global_batch_size else "the current global batch"
        return (
            f"the checkpoint does not record how many sequences were consumed; assuming "
            f"{self.data_position} updates x {batch} ({source}) = {self.data_position * batch}"
        )


def find_start(output_dir: Path) -> StartPoint:
    """Reads the newest checkpoint of ``output_dir``; raises UserError if it cannot be read."""
    checkpoint = newest_checkpoint(output_dir)
    if checkpoint is None:
        return StartPoint(None, 0, 0, 0)
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        step = int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))
        skipped, consumed = (
            int(reader.get_tensor(name)) if reader.has_tensor(name) else None
            for name in (SKIPPED_UPDATES, CONSUMED_SEQUENCES)
        )
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(
            f"--output_dir: checkpoint {checkpoint} cannot be read ({first_line(error)}); "
            f"list an older one in {output_dir / 'checkpoint'} or choose another directory."
        ) from error
    recorded = _recorded_global_batch(output_dir) if consumed is None else None
    return StartPoint(checkpoint, step, step + (skipped or 0), consumed, recorded)


def _recorded_global_batch(output_dir: Path) -> int | None:
    """The global batch of the directory's last run, None without a record of it."""
    record = read_run_record(output_dir)
    return None if record is None else record.fact("batch", "global_batch", int)


class ResumingSaver(tf.train.Saver):
    """A Saver that also restores checkpoints without ``COUNTS``; it saves like TensorFlow's."""

    def __init__(self, variables: Sequence[tf.Variable], *, consumed: int, **options) -> None:
        """Saves ``variables``; ``options`` are those of tf.train.Saver.

        ``consumed`` is the number of consumed sequences for a checkpoint that does not record it.
        """
        super().__init__(variables, **options)
        self._restored = list(variables)
        self._defaults = {SKIPPED_UPDATES: 0, CONSUMED_SEQUENCES: consumed}

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores the variables from the checkpoint ``save_path``."""
        file = TensorflowCheckpoint(save_path)
        if all(name in file.entries for name in self._defaults):
            super().restore(sess, save_path)
            return
        for variable in self._restored:
            name = variable.op.name
            if name in self._defaults and name not in file.entries:
                value = np.int64(self._defaults[name])
            else:
                value = file.read(name)
            # The graph may be finalized, so no operation is added: the initial value is fed.
            sess.run(variable.initializer, {variable.initializer.inputs[1]: value})
