"""Saves batches on which training failed for inspection, in ``nonfinite_STEP`` directories.

Each micro batch has two files: ``rank_R_micro_batch_M.npz`` with its features, after masking, and a
``.json`` of the same name with its origin and what was found in it. The latter is written last and
has a hash of the former, so a batch without a matching one was not written completely.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.train.gradient_check import MicroBatch
from bert_tf.util.errors import UserError
from bert_tf.util.files import (
    atomic_open,
    explain_write_errors,
    finite_or_null,
)
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

_HASH = "features_sha256"

# Entries of a description on which the gradients depend, with their types.
_NUMBERS: dict[str, type | tuple[type, ...]] = {
    "step": int,
    "rank": int,
    "micro_batch": int,
    "data_position": int,
    "first_example": int,
    "seed": int,
    "loss_scale": (int, float),
}


@dataclasses.dataclass(frozen=True)
class SavedBatch:
    """A micro batch with its description.

    Attributes:
      batch: the micro batch.
      facts: the other entries of the description: at least ``step``, ``rank``, ``micro_batch``,
        ``seed`` and ``records``.
      path: the file of its description; None before it is saved.
    """

    batch: MicroBatch
    facts: Mapping[str, Any]
    path: Path | None = None

    @property
    def name(self) -> str:
        """The name of its files, without a suffix."""
        return f"rank_{self.facts['rank']}_micro_batch_{self.facts['micro_batch']}"

    def description(self, features_sha256: str) -> dict[str, Any]:
        """The entries to save with the features, as JSON represents them."""
        entries = {
            **self.facts,
            "data_position": self.batch.data_position,
            "first_example": self.batch.first_example,
            "denominators": dict(self.batch.denominators),
            "loss_scale": self.batch.loss_scale,
            _HASH: features_sha256,
        }
        return json.loads(json.dumps(finite_or_null(entries)))


def save_batches(output_dir: Path, step: int, batches: Sequence[SavedBatch]) -> Path:
    """Saves micro batches of the update after ``step`` in a new directory of ``output_dir``.

    Existing directories are never changed: if one already has the very same batches, for example
    because the run was started again, nothing is written. Returns the directory; raises UserError
    if it cannot be written.
    """
    contents = {batch.name: _as_npz(batch.batch.features) for batch in batches}
    descriptions = {
        batch.name: batch.description(hashlib.sha256(contents[batch.name]).hexdigest())
        for batch in batches
    }
    for number in itertools.count(1):
        directory = output_dir / (f"nonfinite_{step}" + (f"_{number}" if number > 1 else ""))
        if not directory.exists():
            break
        if _descriptions_in(directory) == descriptions:
            return directory
    with explain_write_errors(directory):
        directory.mkdir()
    for name, description in descriptions.items():
        with atomic_open(directory / f"{name}.npz", "wb") as file:
            file.write(contents[name])
        write_sealed_json(directory / f"{name}.json", description)
    return directory


def read_batches(path: Path) -> list[SavedBatch]:
    """Reads the micro batches of a directory, or the one of a file of either kind.

    Raises UserError for files that do not exist, are incomplete or do not belong together.
    """
    if path.is_dir():
        files = sorted(path.glob("rank_*_micro_batch_*.json"))
        if not files:
            raise UserError(
                f"saved batch: {path} contains no batch; give a nonfinite_STEP directory of a "
                "run, or a file in it."
            )
    else:
        files = [path.with_suffix(".json")]
    return [_read(file) for file in files]


def _read(path: Path) -> SavedBatch:
    facts = _read_description(path)
    features_file = path.with_suffix(".npz")
    batch = {name: facts.get(name) for name in _NUMBERS}
    denominators = facts.pop("denominators", None)
    is_complete = (
        all(_is_number(value, _NUMBERS[name]) for name, value in batch.items())
        and isinstance(denominators, dict)
        and all(_is_number(value, (int, float)) for value in denominators.values())
        and isinstance(facts.get("records"), list)
    )
    if not is_complete:
        raise UserError(
            f"saved batch: {path} does not describe a batch; give a file that a run has written."
        )
    try:
        content = features_file.read_bytes()
    except OSError as error:
        raise UserError(
            f"saved batch: {features_file} cannot be read ({error.strerror}); it belongs to {path}."
        ) from error
    if hashlib.sha256(content).hexdigest() != facts.pop(_HASH, None):
        raise UserError(
            f"saved batch: {features_file} is not the file that {path} describes; copy both again."
        )
    loaded = MicroBatch(
        features=_from_npz(content, features_file),
        data_position=facts.pop("data_position"),
        first_example=facts.pop("first_example"),
        denominators=denominators,
        loss_scale=facts.pop("loss_scale"),
    )
    return SavedBatch(loaded, facts, path)


def _read_description(path: Path) -> dict[str, Any]:
    return read_sealed_json(path, what="saved batch", advice="copy it again")


def _is_number(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _as_npz(features: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **features)
    return buffer.getvalue()


def _from_npz(content: bytes, path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"saved batch: {path} is not an .npz file ({error}).") from error


def _descriptions_in(directory: Path) -> dict[str, Any]:
    """The descriptions in a directory by name; None for those that cannot be read."""
    found: dict[str, Any] = {}
    for path in directory.glob("*.json"):
        try:
            found[path.stem] = _read_description(path)
        except UserError:
            found[path.stem] = None
    return found
