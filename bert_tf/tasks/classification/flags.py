"""The flags of run_classifier.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import Definer, require, warn_of_ignored
from bert_tf.config.settings import ClassificationSettings
from bert_tf.tasks.classification.formats import GLUE_TASKS, find_task
from bert_tf.tasks.distillation.flags import teacher_settings
from bert_tf.tasks.finetuning.flags import (
    define_directory_flags,
    define_finetuning_flags,
    directory_settings,
)

_LABEL_FLAG = "alpha_label"


def define_classification_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_classifier.py."""
    define_finetuning_flags(
        Definer(values), _define_classification_flags, examples="examples", label_flag=_LABEL_FLAG
    )


@flag_group("Sentences and labels")
def _define_classification_flags(define: Definer) -> None:
    names = ", ".join(task.name for task in GLUE_TASKS.values())
    define.string("task_name", None, f"GLUE task: {names}.")
    define_directory_flags(
        define,
        files="the task's train.tsv, dev.tsv and test.tsv",
        predictions="test_results.tsv",
        max_seq_length="Maximum tokens of a sentence or a pair; the rest is cut off.",
    )


def classification_settings(values: flags.FlagValues) -> ClassificationSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    warn_of_ignored(values)
    require(values, "output_dir", "task_name")
    task_name = find_task(values.task_name, flag="task_name")
    return directory_settings(
        ClassificationSettings,
        values,
        task_name=task_name,
        distillation=teacher_settings(values, label_flag=_LABEL_FLAG),
    )
