"""Settings of the tagging task."""

from __future__ import annotations

import dataclasses

from bert_tf.config.declared import AT_LEAST_ONE, setting
from bert_tf.finetune.directory import DirectorySettings
from bert_tf.tasks.tagging.windows import WindowSettings


@dataclasses.dataclass(frozen=True)
class TaggingSettings(DirectorySettings):
    """Fine-tuning and prediction on files with a label for every word."""

    doc_stride: int | None = setting(
        None,
        "Tokens between the starts of a long sentence's windows; from --max_seq_length on, windows "
        "do not overlap (default: half of what a window has room for).",
        kind=int,
        bounds=AT_LEAST_ONE,
        of_model=True,
    )

    @property
    def windows(self) -> WindowSettings:
        """The lengths for splitting sentences into windows."""
        return WindowSettings(self.max_seq_length, self.doc_stride)
