"""The checkpoints in a run's directory: finds the latest one and cleans up after a kill.

``model.ckpt-STEP.meta`` is written first. Then TensorFlow writes ``.data-*`` and ``.index`` under
temporary names, renames them in this order, records the checkpoint in the file ``checkpoint`` and
deletes checkpoints that the file no longer lists. A process may be killed between any two of these
steps.
"""

from __future__ import annotations

import re
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import LIST_NAME, is_complete, list_checkpoints
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

PREFIX = "model.ckpt"

_ENDING = r"\.(?:index|meta|data-\d{5}-of-\d{5})"
_FILE = re.compile(rf"({re.escape(PREFIX)}-\d+){_ENDING}")
_HALF_WRITTEN = re.compile(
    rf"{re.escape(PREFIX)}-\d+{_ENDING}\.tempstate\d+|{LIST_NAME}\.tmp[0-9a-f]+"
)


def newest_checkpoint(directory: Path) -> str | None:
    """The path, without suffixes, of the checkpoint from which a run in ``directory`` resumes.

    This is the checkpoint that the file ``checkpoint`` names or, if that file is missing, the
    complete checkpoint with the highest step; None if there are no checkpoints. Raises UserError if
    ``checkpoint`` names a missing checkpoint, or there are only incomplete ones.
    """
    names = directory / LIST_NAME
    if not names.exists():
        return _newest_complete(directory)
    try:
        newest = tf.train.latest_checkpoint(str(directory))
    except ValueError:  # an empty list of checkpoints
        newest = None
    # TensorFlow treats the name as a glob pattern.
    if newest is None or not Path(f"{newest}.index").is_file():
        raise UserError(
            f"--output_dir: {names} is damaged, or the latest checkpoint listed there is missing; "
            "list an older one there, or delete that file to resume from the latest complete "
            "checkpoint in its directory."
        )
    return newest


def only_incomplete(directory: Path) -> set[str]:
    """Names of the checkpoints in a directory that lists none and contains no complete one."""
    if (directory / LIST_NAME).exists() or _complete(directory):
        return set()
    return {name for _, name in _checkpoint_files(directory)}


def remove_checkpoint(directory: Path, name: str) -> None:
    """Removes the files of an unlisted checkpoint, complete or not."""
    for path, of_checkpoint in _checkpoint_files(directory):
        if of_checkpoint == name:
            path.unlink()


def write_missing_list(directory: Path) -> str | None:
    """Writes the file ``checkpoint`` if it is missing and there are complete checkpoints.

    Returns a sentence about this, or None if nothing was missing.
    """
    if (directory / LIST_NAME).exists():
        return None
    found = sorted(_complete(directory), key=step_of)
    if not found:
        return None
    names = [Path(path).name for path in found]
    list_checkpoints(directory, names)
    return (
        f"{directory / LIST_NAME} was missing; the latest complete checkpoint there is {names[-1]}"
    )


def remove_leftovers(directory: Path) -> list[str]:
    """Removes incomplete checkpoints of killed runs; returns the names of the removed files.

    These are half-written files and, if a saver wrote ``checkpoint``, unlisted checkpoints that are
    incomplete or older than all listed ones. Newer complete ones are kept, since a list that was
    edited to return to an older checkpoint omits them too. If the list names a missing checkpoint,
    it may be damaged, so older checkpoints are kept as well.
    """
    leftovers = [path for path in directory.iterdir() if _HALF_WRITTEN.fullmatch(path.name)]
    listed = _listed(directory)
    if listed:
        files = _checkpoint_files(directory)
        is_intact = listed <= {name for _, name in files}
        oldest = min(map(step_of, listed)) if is_intact else 0
        files = [file for file in files if file[1] not in listed]
        complete = {name for name in {name for _, name in files} if is_complete(directory / name)}
        for path, name in files:
            if name not in complete or step_of(name) < oldest:
                leftovers.append(path)
    for path in leftovers:
        path.unlink()
    return sorted(path.name for path in leftovers)


def _listed(directory: Path) -> set[str]:
    """Names in a saver's list; empty if it names only the latest, as when written by hand."""
    state = tf.train.get_checkpoint_state(str(directory))
    if not state or not state.all_model_checkpoint_paths:
        return set()
    paths = [*state.all_model_checkpoint_paths, state.model_checkpoint_path]
    return {Path(path).name for path in paths}


def _newest_complete(directory: Path) -> str | None:
    newest = max(_complete(directory), key=step_of, default=None)
    # A run killed while writing its first checkpoint leaves parts of the checkpoint for step 0.
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
    return [str(directory / name) for name in names if is_complete(directory / name)]


def _checkpoint_files(directory: Path) -> list[tuple[Path, str]]:
    """The checkpoint files in ``directory``, each with the name of its checkpoint."""
    if not directory.is_dir():
        return []
    files = ((path, _FILE.fullmatch(path.name)) for path in sorted(directory.iterdir()))
    return [(path, match[1]) for path, match in files if match and path.is_file()]


def step_of(checkpoint: str) -> int:
    """The step in the name or path of a run's checkpoint."""
    return int(checkpoint.rpartition("-")[2])


def check_step(checkpoint: PathLike, step: int) -> None:
    """Raises UserError if a run's checkpoint is named after another step than it holds."""
    name = Path(checkpoint).name
    if re.fullmatch(rf"{re.escape(PREFIX)}-\d+", name) and step_of(name) != step:
        raise UserError(
            f"checkpoint {checkpoint} is named after step {step_of(name)}, but its global_step is "
            f"{step}: it was renamed, or its files are of two checkpoints; name all of its files "
            f"{PREFIX}-{step}, or copy the checkpoint again."
        )
