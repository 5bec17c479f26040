"""The flags of run_classifier.py and the settings made from them."""

from __future__ import annotations

from bert_tf.finetune.directory import DirectoryFlags
from bert_tf.tasks.classification.long_texts import LongTexts
from bert_tf.tasks.classification.own_files import TableSettings
from bert_tf.tasks.classification.settings import (
    ClassificationSettings,
    LanguageSettings,
    LossSettings,
)
from bert_tf.tasks.classification.thresholds import ThresholdSettings

_FLAGS = DirectoryFlags(
    ClassificationSettings,
    "Sentences and labels",
    examples="examples",
    longest="Maximum tokens of a sentence or a pair; see --long_texts.",
    files="the task's train.tsv, dev.tsv and test.tsv",
    predictions="test_results.tsv",
    groups=(LanguageSettings, TableSettings, LossSettings, LongTexts, ThresholdSettings),
    changes={"task_name": {"default": None}},
)
define_classification_flags, classification_settings = _FLAGS.define, _FLAGS.settings
