"""Where a run with --resume_from starts: from a copy of that checkpoint, made at its start."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import (
    PREFIX,
    newest_checkpoint,
    only_incomplete,
    remove_checkpoint,
)
from bert_tf.checkpoint.tensorflow_file import (
    TensorflowCheckpoint,
    list_checkpoints,
    resolve_checkpoint,
    write_checkpoint,
)
from bert_tf.train.start_point import StartPoint, find_start, read_start
from bert_tf.update.train_op import CONSUMED_SEQUENCES, SKIPPED_UPDATES
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike


def _start_elsewhere(resume_from: PathLike, *, reset_step: bool) -> StartPoint:
    """The start from --resume_from, which is a checkpoint or a directory's newest one.

    With ``reset_step`` all counts are 0. Raises UserError if it cannot be read.
    """
    checkpoint = resolve_checkpoint(resume_from)
    start = read_start(checkpoint, flag="resume_from", advice="give another checkpoint")
    if reset_step:
        start = StartPoint(checkpoint, 0, 0, 0)
    return dataclasses.replace(start, is_elsewhere=True)


def find_resumed_start(output_dir: Path, resume_from: PathLike, *, reset_step: bool) -> StartPoint:
    """Finds where a run with --resume_from starts: from that checkpoint until it is copied.

    What a kill left of the copy is ignored; :func:`take_over` copies again. Once there is a
    complete checkpoint in ``output_dir``, ``resume_from`` is not read. Raises UserError if a
    checkpoint cannot be read.
    """
    parts = only_incomplete(output_dir)
    if not parts and newest_checkpoint(output_dir) is not None:
        return find_start(output_dir)
    start = _start_elsewhere(resume_from, reset_step=reset_step)
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
