"""The checkpoints to evaluate: a single one, or all of a run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from bert_tf.checkpoint.tensorflow_file import is_complete, resolve_checkpoint
from bert_tf.model_directory.directory import SHARD_INDEX_SUFFIXES, find_pytorch_weights
from bert_tf.util.digest import digest_of, digest_of_file
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json_object

_STEP = re.compile(r"-(\d+)$")


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
