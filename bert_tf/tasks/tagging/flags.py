"""The flags of run_ner.py and the settings made from them."""

from __future__ import annotations

from bert_tf.finetune.directory import DirectoryFlags
from bert_tf.tasks.tagging.settings import TaggingSettings

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
