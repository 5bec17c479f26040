"""The settings of run_multiple_choice.py, and their flags."""

from __future__ import annotations

import dataclasses

from bert_tf.finetune.flags import DirectoryFlags
from bert_tf.finetune.settings import DirectorySettings


@dataclasses.dataclass(frozen=True)
class ChoiceSettings(DirectorySettings):
    """Fine-tuning and prediction on contexts with several choices."""


_FLAGS = DirectoryFlags(
    ChoiceSettings,
    "Questions and choices",
    examples="questions",
    longest="Maximum tokens of a context with one choice; the longer of both loses its end.",
    files="train, dev (or val) and test: .jsonl, SWAG's .csv, or RACE's directories",
    predictions="predictions.jsonl",
)
define_choice_flags, choice_settings = _FLAGS.define, _FLAGS.settings
