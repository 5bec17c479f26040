"""Saves batches on which training failed for inspection, in ``nonfinite_STEP`` directories.

Each micro batch has two files: ``rank_R_micro_batch_M.npz`` with its features, after masking, and a
``.json`` of the same name with its origin and what was found in it. The latter is written last and
has a hash of the former, so a batch without a matching one was not written completely.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.train.gradient_check import MicroBatch
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import (
    atomic_open,
    explain_write_errors,
    finite_or_null,
)

_HASH = "features_sha256"


@dataclasses.dataclass(frozen=True)
class SavedBatch:
    """A micro batch with its description.

    Attributes:
      batch: the micro batch.
      facts: the other entries of the description: at least ``step``, ``rank``, ``micro_batch``,
        ``seed`` and ``records``.
    """

    batch: MicroBatch
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its files, without a suffix."""
        return f"rank_{self.facts['rank']}_micro_batch_{self.facts['micro_batch']}"

    def description(self, features_digest: str) -> dict[str, Any]:
        """The entries to save with the features, as JSON represents them."""
        entries = {
            **self.facts,
            "data_position": self.batch.data_position,
            "first_example": self.batch.first_example,
            "denominators": dict(self.batch.denominators),
            "loss_scale": self.batch.loss_scale,
            _HASH: features_digest,
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
        batch.name: batch.description(digest_of(contents[batch.name])) for batch in batches
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


def _read_description(path: Path) -> dict[str, Any]:
    return read_sealed_json(path, what="saved batch", advice="copy it again")


def _as_npz(features: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **features)
    return buffer.getvalue()


def _descriptions_in(directory: Path) -> dict[str, Any]:
    """The descriptions in a directory by name; None for those that cannot be read."""
    found: dict[str, Any] = {}
    for path in directory.glob("*.json"):
        try:
            found[path.stem] = _read_description(path)
        except UserError:
            found[path.stem] = None
    return found
