"""The flags of run_classifier.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, require
from bert_tf.cli.training_flags import warn_of_ignored
from bert_tf.finetune.flags import (
    define_directory_flags,
    define_finetuning_flags,
    directory_settings,
)
from bert_tf.tasks.classification.long_texts import LongTexts
from bert_tf.tasks.classification.own_files import TableSettings
from bert_tf.tasks.classification.settings import (
    ClassificationSettings,
    LanguageSettings,
    LossSettings,
)
from bert_tf.tasks.classification.thresholds import ThresholdSettings


def define_classification_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_classifier.py."""
    define_finetuning_flags(
        Definer(values),
        _define_classification_flags,
        examples="examples",
        label_flag="alpha_label",
        max_seq_length={
            "default": 128,
            "help_text": "Maximum tokens of a sentence or a pair; see --long_texts.",
        },
        length_buckets=False,
    )


@flag_group("Sentences and labels")
def _define_classification_flags(define: Definer) -> None:
    define.settings(ClassificationSettings, task_name={"default": None})
    define.settings(LanguageSettings)
    define.settings(TableSettings)
    define.settings(LossSettings)
    define.settings(LongTexts)
    define.settings(ThresholdSettings)
    define_directory_flags(
        define,
        files="the task's train.tsv, dev.tsv and test.tsv",
        predictions="test_results.tsv",
    )


def classification_settings(values: flags.FlagValues) -> ClassificationSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    warn_of_ignored(values)
    require(values, "output_dir")
    return directory_settings(
        ClassificationSettings, values, needs_directory=bool(values.task_name)
    )
