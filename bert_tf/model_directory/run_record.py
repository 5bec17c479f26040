"""``run.json``: the record of the last training run in a directory.

Runs that resume or load weights from the directory are compared with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.model.config import BertConfig
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, read_json

RUN_RECORD_NAME = "run.json"
# The entry that names the model's record, which is there since the run began.
MODEL_RECORD_KEY = "model_record"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The contents of a ``run.json``.

    Attributes:
      content: the complete contents; ``content["ledger"]`` maps sections to their entries.
    """

    path: Path
    content: Mapping[str, Any]

    @property
    def ledger(self) -> Mapping[str, Mapping[str, Any]]:
        """The sections of the ledger, as made by ``train.ledger``."""
        return self.content["ledger"]

    def fact(self, section: str, name: str, *kinds: type) -> Any:
        """A ledger entry; raises UserError if it is missing or of another type."""
        value = self.ledger.get(section, {}).get(name)
        if type(value) not in kinds:
            raise _damaged(self.path, f"it has no usable {section}.{name}")
        return value

    @property
    def config(self) -> BertConfig:
        """The trained network's architecture, with an unambiguous GELU; UserError if missing."""
        values = self.content.get("model")
        if not isinstance(values, dict):
            raise _damaged(self.path, "it has no usable model")
        try:
            return BertConfig.from_dict(values, source="there").with_explicit_gelu()
        except UserError as error:
            raise _damaged(self.path, str(error).rstrip(".")) from error


def read_run_record(directory: PathLike) -> RunRecord | None:
    """The record in a directory; None if there is none.

    Raises a UserError that explains what deleting the record would lose if it is damaged.
    """
    path = Path(directory) / RUN_RECORD_NAME
    if not path.is_file():
        return None
    try:
        content = read_json(path, what="run record")
    except UserError as error:
        raise _damaged(path, str(error).rstrip(".")) from error
    ledger = content.get("ledger") if isinstance(content, dict) else None
    if not isinstance(ledger, dict) or not all(isinstance(s, dict) for s in ledger.values()):
        raise _damaged(path, "it has no usable ledger")
    return RunRecord(path, content)


def _damaged(path: Path, why: str) -> UserError:
    about = "" if str(path) in why else f"run record: {path}: "
    return UserError(
        f"{about}{why}; restore the file or delete it; deleting it only loses the comparison with "
        "the run's last start."
    )
