"""Where a run goes on, also from checkpoints that do not count what this toolkit counts.

Those of google-research/bert, and of this toolkit before it counted sequences, say how many updates
were applied. That is enough: what is missing follows from it.
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

# What a checkpoint may lack.
COUNTS = frozenset({SKIPPED_UPDATES, CONSUMED_SEQUENCES})


@dataclasses.dataclass(frozen=True)
class StartPoint:
    """Where a run goes on.

    Attributes:
      checkpoint: None in a directory without one.
      step: updates that were applied.
      data_position: updates that consumed data.
      consumed_sequences: by all of them; None where the checkpoint does not say.
      global_batch_size: of these updates, by the directory's run.json, where the checkpoint does
        not say how many sequences they consumed; None where nothing says.
    """

    checkpoint: str | None
    step: int
    data_position: int
    consumed_sequences: int | None
    global_batch_size: int | None = None

    def consumed(self, global_batch_size: int) -> int:
        """The sequences consumed, in batches of ``global_batch_size`` where no other is known."""
        if self.consumed_sequences is None:
            return self.data_position * (self.global_batch_size or global_batch_size)
        return self.consumed_sequences

    def assumption(self, global_batch_size: int) -> str | None:
        """A sentence on how :meth:`consumed` was found; None where the checkpoint says it."""
        if self.consumed_sequences is not None:
            return None
        batch = self.global_batch_size or global_batch_size
        source = "as recorded in run.json" if self.global_batch_size else "the global batch now"
        return (
            f"the checkpoint does not say how many sequences were consumed: taken as "
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
            f"name an older one in {output_dir / 'checkpoint'} or choose another directory."
        ) from error
    recorded = _recorded_global_batch(output_dir) if consumed is None else None
    return StartPoint(checkpoint, step, step + (skipped or 0), consumed, recorded)


def _recorded_global_batch(output_dir: Path) -> int | None:
    """The global batch of the directory's last run, None where there is no record of one."""
    record = read_run_record(output_dir)
    return None if record is None else record.fact("batch", "global_batch", int)


class ResumingSaver(tf.train.Saver):
    """Restores checkpoints without ``COUNTS`` too; else TensorFlow's own, which it writes alike."""

    def __init__(self, variables: Sequence[tf.Variable], *, consumed: int, **options) -> None:
        """Saves ``variables``; ``options`` are those of tf.train.Saver.

        ``consumed`` is the number of sequences for a checkpoint that does not say it.
        """
        super().__init__(variables, **options)
        self._restored = list(variables)
        self._defaults = {SKIPPED_UPDATES: 0, CONSUMED_SEQUENCES: consumed}

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Gives the variables their values in the checkpoint ``save_path``."""
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
            # The graph may be finished: no new operation, the initial value is fed.
            sess.run(variable.initializer, {variable.initializer.inputs[1]: value})
