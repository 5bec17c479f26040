"""The settings of run_ner.py, and their flags."""

from __future__ import annotations

import dataclasses

from bert_tf.config.declared import AT_LEAST_ONE, setting
from bert_tf.finetune.flags import DirectoryFlags
from bert_tf.finetune.settings import DirectorySettings


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


_FLAGS = DirectoryFlags(
    TaggingSettings,
    "Words and labels",
    examples="sentences",
    longest="Maximum tokens of a sequence; longer sentences become windows.",
    files="the files train, dev (or devel, valid) and test, each .txt, .tsv or .conll",
    predictions="predictions.txt",
    ignored={"task_name": str, "do_prepare": bool},
    why="NVIDIA's; the files say what is labelled",
    peer="TAGGING",
)
define_tagging_flags, tagging_settings = _FLAGS.define, _FLAGS.settings
