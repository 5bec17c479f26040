"""``rollbacks.json``: the returns of a run to earlier checkpoints, and how it continued.

The file decides: it is written before anything else changes, so that a run that is killed at any
moment afterwards continues from the same checkpoint, with the same rate and data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_tf.util.errors import UserError
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

RECORD_NAME = "rollbacks.json"
_ENTRIES = "rollbacks"
_WHAT = "record of roll-backs"
_ADVICE = (
    "restore it, or delete it to resume from the latest checkpoint as if the run had never been "
    "rolled back"
)


@dataclasses.dataclass(frozen=True)
class Rollback:
    """One return to an earlier checkpoint.

    Attributes:
      step: the checkpoint's step.
      failed_step: the step that the run had reached.
      data_position: the number of the global batch with which training continued.
      consumed_sequences: the number of sequences in the batches before it.
      rate_factor: the factor on the schedule's learning rate from there on, earlier roll-backs
        included.
    """

    step: int
    failed_step: int
    data_position: int
    consumed_sequences: int
    rate_factor: float


def read_rollbacks(output_dir: Path) -> tuple[Rollback, ...]:
    """The roll-backs of the run in ``output_dir``, from first to last.

    Raises UserError if the file is damaged.
    """
    path = output_dir / RECORD_NAME
    if not path.is_file():
        return ()
    entries = read_sealed_json(path, what=_WHAT, advice=_ADVICE).get(_ENTRIES)
    if not isinstance(entries, list) or not all(map(_is_rollback, entries)):
        raise UserError(f"{_WHAT}: {path} is damaged; {_ADVICE}.")
    return tuple(Rollback(**entry) for entry in entries)


def write_rollbacks(output_dir: Path, rollbacks: Sequence[Rollback]) -> None:
    """Replaces the record atomically."""
    entries = list(map(dataclasses.asdict, rollbacks))
    write_sealed_json(output_dir / RECORD_NAME, {_ENTRIES: entries})


def _is_rollback(entry: Any) -> bool:
    names = {field.name for field in dataclasses.fields(Rollback)}
    if not isinstance(entry, dict) or entry.keys() != names:
        return False
    counts = [value for name, value in entry.items() if name != "rate_factor"]
    factor = entry["rate_factor"]
    return all(type(count) is int and count >= 0 for count in counts) and (
        type(factor) is float and math.isfinite(factor) and 0 < factor < 1
    )
