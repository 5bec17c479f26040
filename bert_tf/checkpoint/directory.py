"""The checkpoints in a directory: finds the latest one, or all, and cleans up after a kill.

``model.ckpt-STEP.meta`` is written first. Then TensorFlow writes ``.data-*`` and ``.index`` under
temporary names, renames them in this order, records the checkpoint in the file ``checkpoint`` and
deletes checkpoints that the file no longer lists. A process may be killed between any two of these
steps.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import (
    LIST_NAME,
    is_complete,
    list_checkpoints,
    resolve_checkpoint,
)
from bert_tf.model_directory.directory import SHARD_INDEX_SUFFIXES, find_pytorch_weights
from bert_tf.util.digest import digest_of, digest_of_file
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, read_json_object

PREFIX = "model.ckpt"

_STEP = re.compile(r"-(\d+)$")
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


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to evaluate.

    Attributes:
      name: its name in tables, and of its directory among the scores.
      step: the number of updates in its name; None if it has none.
      weights_digest: a digest of its files.
    """

    path: Path
    name: str
    step: int | None
    weights_digest: str


def find_checkpoints(path: Path, *, every_one: bool) -> list[Checkpoint]:
    """The checkpoint that a path refers to or, with ``every_one``, all in a directory, by step.

    Raises UserError if there is none.
    """
    if every_one:
        paths = run_checkpoints(path, flag="init_checkpoint")
    else:
        paths = [find_pytorch_weights(path) or Path(resolve_checkpoint(path))]
    return [Checkpoint(p, p.name, step_in_name(p), _digest(p)) for p in paths]


def run_checkpoints(directory: Path, *, flag: str) -> list[Path]:
    """The complete TensorFlow checkpoints in a directory, by step; UserError if there is none."""
    if not directory.is_dir():
        raise UserError(f"--{flag}={directory} is not a directory; give one of a run.")
    prefixes = [file.with_suffix("") for file in directory.glob("*.index")]
    # Leaves out what a killed run left behind, and what a running one is still writing.
    complete = [prefix for prefix in prefixes if is_complete(prefix)]
    if not complete:
        raise UserError(f"--{flag}={directory} holds no complete TensorFlow checkpoint.")
    return sorted(complete, key=lambda prefix: (step_in_name(prefix) or 0, prefix.name))


def step_in_name(path: Path) -> int | None:
    """The step in the name of a checkpoint; None if it has none."""
    step = _STEP.search(path.name)
    return int(step[1]) if step else None


def _digest(path: Path) -> str:
    """A digest of the files of a TensorFlow checkpoint, or of weights and all their shards."""
    names = re.compile(re.escape(path.name) + r"\.(index|data-\d{5}-of-\d{5})")
    files = sorted(file for file in path.parent.iterdir() if names.fullmatch(file.name))
    if not files:
        files = [path]
    if path.name.endswith(SHARD_INDEX_SUFFIXES):
        named = read_json_object(path, what="index of weights").get("weight_map", {})
        files += [path.with_name(name) for name in sorted(set(named.values()))]
    return digest_of("".join(map(digest_of_file, files)).encode())
