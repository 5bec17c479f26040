"""The stages from raw text to records, in their order.

Whoever walks through them reads this table: the pipeline, ``inspect``, and the benchmarks. A new
stage is a module in this folder and a row here.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple


class StageRow(NamedTuple):
    """A stage.

    Attributes:
      name: that of its module, its command and its manifests.
      reads: the stages whose output it may read, the one that it reads if there is one first.
      writes_text: whether its output is text.
      writes_sentences: whether its text has one sentence per line.
      has_workers: whether it takes ``--num_workers``.
      room: the package of its module.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes_text: bool = True
    writes_sentences: bool = False
    has_workers: bool = True
    room: str = "data_prep.stages"

    @property
    def module(self) -> ModuleType:
        """Its ``Settings`` and ``run``."""
        return importlib.import_module(f"{self.room}.{self.name}")


STAGES = {
    row.name: row
    for row in (
        StageRow("download", writes_text=False, has_workers=False, room="data_prep.downloads"),
        StageRow("extract", reads=("download",)),
        StageRow("filter_language", reads=("extract", "download")),
        StageRow("clean", reads=("filter_language", "extract", "download")),
        StageRow(
            "sentences",
            reads=("clean", "filter_language", "extract", "download"),
            writes_sentences=True,
        ),
        StageRow("shards", reads=("sentences",), writes_sentences=True, has_workers=False),
        StageRow("vocabulary", reads=("shards",), writes_text=False),
        StageRow("create_pretraining_data", reads=("shards",), writes_text=False),
    )
}
