"""Settings of what exported models of any task take and return."""

from __future__ import annotations

import dataclasses

from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, setting
from bert_tf.model.config import BertConfig
from bert_tf.tasks.question_answering.settings import WindowSettings
from bert_tf.tasks.question_answering.windows import fitting_windows
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util.options import Interval


@dataclasses.dataclass(frozen=True)
class ExportSettings(Settings):
    """What exported models take and return."""

    max_seq_length: int | None = setting(
        None,
        "Maximum sequence length (default: the model's).",
        kind=int,
        bounds=Interval(3),
        advice="[CLS], a token, [SEP]",
    )
    text_signature: bool = setting(
        False,
        "Add the signatures that take strings; tensorflow-text is then needed wherever the export "
        "is loaded.",
    )
    n_best_size: int = setting(
        20, "Questions: number of best positions to return.", bounds=AT_LEAST_ONE
    )
    max_query_length: int | None = setting(
        None,
        "Questions: their maximum length in the text signature (default: 64, or a quarter of a "
        "shorter --max_seq_length).",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    vectors: VectorSettings = group(VectorSettings)
    top: int = setting(5, "Masked words: number of words for each [MASK].", bounds=AT_LEAST_ONE)

    def longest(self, config: BertConfig) -> int:
        """The maximum length; raises UserError if the network lacks positions."""
        if self.max_seq_length is None:
            return config.max_position_embeddings
        config.check_length(self.max_seq_length, f"--max_seq_length={self.max_seq_length} is")
        return self.max_seq_length

    def windows(self, longest: int) -> WindowSettings:
        """The lengths in the text signature; raises UserError for impossible ones."""
        query = self.max_query_length or fitting_windows(longest).max_query_length
        windows = WindowSettings(max_seq_length=longest, max_query_length=query)
        windows.validate()
        return windows
