"""Where a run starts or resumes, also from checkpoints without this toolkit's counters.

A run with --resume_from starts from a copy of that checkpoint, made at its start.

Checkpoints of google-research/bert, and of this toolkit before it counted sequences, have only the
number of applied updates. That is enough: the other counts follow from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import (
    LIST_NAME,
    PREFIX,
    check_step,
    newest_checkpoint,
    only_incomplete,
    remove_checkpoint,
)
from bert_tf.checkpoint.tensorflow_file import (
    Stored,
    TensorflowCheckpoint,
    list_checkpoints,
    resolve_checkpoint,
    warn_if_older,
    write_checkpoint,
    write_meta_graph,
)
from bert_tf.model.variables import load_value
from bert_tf.model_directory.run_record import RunRecord, read_run_record
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.loss_scale import GOOD_UPDATES, SCALE
from bert_tf.update.train_op import CONSUMED_SEQUENCES, SKIPPED_UPDATES
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike

_ROLLBACKS_NAME = "rollbacks.json"  # of earlier versions, which also lowered the learning rate

# Variables that a checkpoint may lack: counters, and the state of a dynamic loss scale.
COUNTS = frozenset({SKIPPED_UPDATES, CONSUMED_SEQUENCES})
OPTIONAL_STATE = COUNTS | {SCALE, GOOD_UPDATES}


@dataclasses.dataclass(frozen=True)
class StartPoint:
    """Where a run starts or resumes.

    Attributes:
      checkpoint: None in a directory without one.
      step: number of applied updates.
      data_position: number of updates that consumed data.
      consumed_sequences: sequences consumed by them; None if the checkpoint does not record it.
      record: what the run to resume recorded at its last start; None if it did not, or for a run
        that only starts from another run's optimizer state.
      is_elsewhere: whether the checkpoint is --resume_from's, in another directory.
    """

    checkpoint: str | None
    step: int
    data_position: int
    consumed_sequences: int | None
    record: RunRecord | None = None
    is_elsewhere: bool = False

    @property
    def _recorded_batch_size(self) -> int | None:
        return None if self.record is None else self.record.fact("batch", "global_batch", int)

    def consumed(self, global_batch_size: int) -> int:
        """The number of consumed sequences, assuming ``global_batch_size`` if none was recorded."""
        if self.consumed_sequences is None:
            return self.data_position * (self._recorded_batch_size or global_batch_size)
        return self.consumed_sequences

    def total(self, batch: BatchPlan, last_step: int) -> int:
        """The number of sequences consumed at ``last_step``, including those before the start."""
        end = self.data_position + max(0, last_step - self.step)
        return self.consumed(batch.global_batch_size) + batch.sequences(self.data_position, end)

    def parts(self, batch: BatchPlan, last_step: int) -> list[tuple[float, int | None]]:
        """The sequences of :meth:`total` by length, which is None without a length ramp.

        Sequences consumed before the start are divided as if the ramp had been the same.
        """
        end = self.data_position + max(0, last_step - self.step)
        counted = batch.sequences(0, self.data_position)
        share = self.consumed(batch.global_batch_size) / counted if counted else 0.0
        before = batch.segments(0, self.data_position)
        after = batch.segments(self.data_position, end)
        return [
            *((part.sequences * share, part.length) for part in before),
            *((part.sequences, part.length) for part in after),
        ]

    def assumption(self, global_batch_size: int) -> str | None:
        """A sentence on how :meth:`consumed` is computed; None if the checkpoint records it."""
        if self.consumed_sequences is not None:
            return None
        recorded = self._recorded_batch_size
        batch = recorded or global_batch_size
        source = "as recorded in run.json" if recorded else "the current global batch"
        return (
            f"the checkpoint does not record how many sequences were consumed; assuming "
            f"{self.data_position} updates x {batch} ({source}) = {self.data_position * batch}"
        )


# The start of a run in an empty directory.
NEW = StartPoint(None, 0, 0, 0)


def find_start(output_dir: Path) -> StartPoint:
    """Finds the newest checkpoint of ``output_dir``; raises UserError if it cannot be read."""
    checkpoint = newest_checkpoint(output_dir)
    if checkpoint is None:
        return NEW
    if (output_dir / _ROLLBACKS_NAME).is_file():
        raise UserError(
            f"{output_dir / _ROLLBACKS_NAME}: an earlier version of bert_tf rolled this run back, "
            "and only that version can resume it; start a new run with --init_checkpoint."
        )
    advice = f"list an older one in {output_dir / LIST_NAME} or choose another directory"
    start = _read_start(checkpoint, flag="output_dir", advice=advice)
    warn_if_older(checkpoint)
    return start


def _read_start(
    checkpoint: str, *, flag: str, advice: str, is_elsewhere: bool = False
) -> StartPoint:
    """The start from a checkpoint; raises UserError, with the advice, if it cannot be read."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        step = int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))
        skipped, consumed = (
            int(reader.get_tensor(name)) if reader.has_tensor(name) else None
            for name in (SKIPPED_UPDATES, CONSUMED_SEQUENCES)
        )
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(
            f"--{flag}: checkpoint {checkpoint} cannot be read ({first_line(error)}); {advice}."
        ) from error
    check_step(checkpoint, step)
    record = read_run_record(Path(checkpoint).parent)
    return StartPoint(checkpoint, step, step + (skipped or 0), consumed, record, is_elsewhere)


class ResumingSaver(tf.train.Saver):
    """A Saver that also restores checkpoints without ``OPTIONAL_STATE``.

    So a run with a dynamic loss scale can follow one with a static scale or none. It saves like
    TensorFlow's Saver, but with a ``.meta`` file of the variables only.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        *,
        consumed: int,
        loss_scale: float = 1.0,
        **options: object,
    ) -> None:
        """Saves ``variables``; ``options`` are those of tf.train.Saver.

        ``consumed`` is the number of consumed sequences and ``loss_scale`` the dynamic scale, both
        used if a checkpoint does not record them.
        """
        super().__init__(variables, **options)
        self._saved = {v.op.name: Stored(v.shape.as_list(), v.dtype.base_dtype) for v in variables}
        self._restored = list(variables)
        self._defaults: dict[str, np.generic] = {
            SKIPPED_UPDATES: np.int64(0),
            CONSUMED_SEQUENCES: np.int64(consumed),
            SCALE: np.float32(loss_scale),
            GOOD_UPDATES: np.int64(0),
        }

    def save(self, sess: tf.Session, save_path: str, global_step: int) -> str | None:
        """Saves the variables as the checkpoint ``save_path``-``global_step``; returns its path."""
        write_meta_graph(f"{save_path}-{global_step}", self._saved)
        return super().save(sess, save_path, global_step, write_meta_graph=False)

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores the variables from the checkpoint ``save_path``."""
        file = TensorflowCheckpoint(save_path)
        names = {variable.op.name for variable in self._restored}
        missing = (names & self._defaults.keys()) - file.entries.keys()
        if not missing:
            super().restore(sess, save_path)
            return
        for variable in self._restored:
            name = variable.op.name
            value = self._defaults[name] if name in missing else file.read(name)
            load_value(variable, value, sess)


def find_resumed_start(output_dir: Path, resume_from: PathLike, *, reset_step: bool) -> StartPoint:
    """Finds where a run with --resume_from starts: from that checkpoint until it is copied.

    ``resume_from`` is a checkpoint or a directory, whose newest one is taken; with ``reset_step``
    all counts are 0. What a kill left of the copy is ignored; :func:`take_over` copies again. Once
    there is a complete checkpoint in ``output_dir``, ``resume_from`` is not read. Raises UserError
    if a checkpoint cannot be read.
    """
    parts = only_incomplete(output_dir)
    if not parts and newest_checkpoint(output_dir) is not None:
        return find_start(output_dir)
    checkpoint = resolve_checkpoint(resume_from)
    start = _read_start(
        checkpoint, flag="resume_from", advice="give another checkpoint", is_elsewhere=True
    )
    if reset_step:
        start = StartPoint(checkpoint, 0, 0, 0, is_elsewhere=True)
    # Parts of other checkpoints are somebody's unfinished copy of a run, which is not overwritten.
    return start if parts <= {_name_of_copy(start)} else find_start(output_dir)


def take_over(start: StartPoint, output_dir: Path, *, global_batch_size: int) -> None:
    """Copies a start's checkpoint, if any, into ``output_dir``, where it becomes the newest.

    The copy records all counts; ``global_batch_size`` is used for those that ``start`` lacks. What
    a kill leaves of it is removed and copied again at the next start. Raises UserError if it cannot
    be written.
    """
    if start.checkpoint is None:
        return
    file = TensorflowCheckpoint(start.checkpoint)
    counts = {
        tf.GraphKeys.GLOBAL_STEP: start.step,
        SKIPPED_UPDATES: start.data_position - start.step,
        CONSUMED_SEQUENCES: start.consumed(global_batch_size),
    }
    arrays = {name: file.read(name) for name in file.entries}
    arrays.update({name: np.asarray(count, np.int64) for name, count in counts.items()})
    path = output_dir / _name_of_copy(start)
    try:
        remove_checkpoint(output_dir, path.name)
        write_checkpoint(str(path), arrays)
        list_checkpoints(output_dir, [path.name])
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"cannot copy {start.checkpoint} to {path} ({first_line(error)}); free some space or "
            "choose another --output_dir."
        ) from error


def _name_of_copy(start: StartPoint) -> str:
    return f"{PREFIX}-{start.step}"
