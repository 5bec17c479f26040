"""The checkpoints in a run's directory: finding the latest, cleaning up after a kill.

``model.ckpt-STEP.meta`` is written first (``meta_graph.py``). Then TensorFlow writes ``.data-*``
and ``.index`` under temporary names, renames them in this order, names the checkpoint in the file
``checkpoint`` and deletes what that file no longer lists. A kill may happen between any two of
these steps.
"""

from __future__ import annotations

import re
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, resolve_checkpoint
from bert_tf.errors import UserError

LIST_NAME = "checkpoint"
PREFIX = "model.ckpt"

_ENDING = r"\.(?:index|meta|data-\d{5}-of-\d{5})"
_FILE = re.compile(rf"({re.escape(PREFIX)}-\d+){_ENDING}")
_HALF_WRITTEN = re.compile(
    rf"{re.escape(PREFIX)}-\d+{_ENDING}\.tempstate\d+|{LIST_NAME}\.tmp[0-9a-f]+"
)


def newest_checkpoint(directory: Path) -> str | None:
    """The path, without suffixes, of the checkpoint from which a run in ``directory`` resumes.

    It is the one that the file ``checkpoint`` names or, if that file is missing, the complete
    checkpoint with the highest step. None if there is none.

    Raises:
      UserError: ``checkpoint`` names none that exists, or there are only incomplete checkpoints.
    """
    names = directory / LIST_NAME
    if not names.exists():
        return _newest_complete(directory)
    try:
        newest = tf.train.latest_checkpoint(str(directory))
    except ValueError:  # an empty list of checkpoints
        newest = None
    if newest is None:
        raise UserError(
            f"--output_dir: the latest checkpoint listed in {names} is missing; list an older one "
            "there, or delete that file to resume from the latest complete checkpoint in its "
            "directory."
        )
    return newest


def write_missing_list(directory: Path) -> str | None:
    """Writes the file ``checkpoint`` if it is missing and there are complete checkpoints.

    Returns a sentence about it, None if nothing was missing.
    """
    if (directory / LIST_NAME).exists():
        return None
    found = sorted(_complete(directory), key=step_of)
    if not found:
        return None
    names = [Path(path).name for path in found]
    tf.train.update_checkpoint_state(str(directory), names[-1], all_model_checkpoint_paths=names)
    return (
        f"{directory / LIST_NAME} was missing; the latest complete checkpoint there is {names[-1]}"
    )


def listed_checkpoints(directory: Path) -> list[str]:
    """Paths of the checkpoints that the file ``checkpoint`` lists, from the lowest step."""
    return [str(directory / name) for name in sorted(_listed(directory), key=step_of)]


def go_back_to(directory: Path, step: int) -> None:
    """Makes the checkpoint at ``step`` the latest one, and removes those of later steps.

    After a kill in between there are later ones that are not listed; calling it again removes them.
    """
    kept = sorted((n for n in _listed(directory) if step_of(n) < step), key=step_of)
    kept.append(f"{PREFIX}-{step}")
    tf.train.update_checkpoint_state(str(directory), kept[-1], all_model_checkpoint_paths=kept)
    for path, name in _checkpoint_files(directory):
        if step_of(name) > step:
            path.unlink()


def remove_leftovers(directory: Path) -> list[str]:
    """Removes incomplete checkpoints of killed runs; returns the names of the removed files.

    These are half-written files and, if a saver wrote ``checkpoint``, unlisted checkpoints that are
    incomplete or older than all listed ones. Newer complete ones are kept, since a list that was
    edited to go back to an older checkpoint does not mention them either.
    """
    leftovers = [path for path in directory.iterdir() if _HALF_WRITTEN.fullmatch(path.name)]
    listed = _listed(directory)
    if listed:
        oldest = min(map(step_of, listed))
        files = [file for file in _checkpoint_files(directory) if file[1] not in listed]
        complete = {name for name in {name for _, name in files} if _is_complete(directory, name)}
        for path, name in files:
            if name not in complete or step_of(name) < oldest:
                leftovers.append(path)
    for path in leftovers:
        path.unlink()
    return sorted(path.name for path in leftovers)


def _listed(directory: Path) -> set[str]:
    """Names in a saver's list; empty for a list with only the latest, as written by hand."""
    state = tf.train.get_checkpoint_state(str(directory))
    return {Path(path).name for path in state.all_model_checkpoint_paths} if state else set()


def _newest_complete(directory: Path) -> str | None:
    newest = max(_complete(directory), key=step_of, default=None)
    # A run killed while writing its first checkpoint leaves parts of the one for step 0.
    parts = [path.name for path, name in _checkpoint_files(directory) if step_of(name)]
    if newest is None and parts:
        raise UserError(
            f"--output_dir: {directory} contains only incomplete checkpoints, with files such as "
            f"{min(parts)}; copy all files of the checkpoint, or choose another directory."
        )
    return newest


def _complete(directory: Path) -> list[str]:
    """Paths of the checkpoints in ``directory`` whose files all exist and are not truncated."""
    names = {name for _, name in _checkpoint_files(directory)}
    return [str(directory / name) for name in names if _is_complete(directory, name)]


def _is_complete(directory: Path, name: str) -> bool:
    path = str(directory / name)
    try:
        resolve_checkpoint(path)
        TensorflowCheckpoint(path).check_size()
    except UserError:
        return False
    return True


def _checkpoint_files(directory: Path) -> list[tuple[Path, str]]:
    """The checkpoint files in ``directory``, each with the name of its checkpoint."""
    if not directory.is_dir():
        return []
    files = ((path, _FILE.fullmatch(path.name)) for path in sorted(directory.iterdir()))
    return [(path, match[1]) for path, match in files if match and path.is_file()]


def step_of(checkpoint: str) -> int:
    """The step in the name or path of a run's checkpoint."""
    return int(checkpoint.rpartition("-")[2])
