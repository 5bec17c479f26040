"""The flags of run_classifier.py and the settings made from them."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bert_tf.command_line import flag_group
from bert_tf.config.finetuning_flags import (
    define_finetuning_flags,
    finetuning_run_settings,
    finetuning_settings,
)
from bert_tf.config.flags import Definer, at_least_one, optional_file, require, warn_of_ignored
from bert_tf.config.settings import ClassificationSettings, RunSettings
from bert_tf.errors import UserError
from bert_tf.glue.formats import GLUE_TASKS, find_task


def define_classification_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_classifier.py."""
    define_finetuning_flags(Definer(values), _define_classification_flags, examples="examples")


@flag_group("Sentences and labels")
def _define_classification_flags(define: Definer) -> None:
    names = ", ".join(task.name for task in GLUE_TASKS.values())
    define.string("task_name", None, f"GLUE task: {names}.")
    define.string("data_dir", None, "Directory of the task's train.tsv, dev.tsv and test.tsv.")
    define.boolean("do_eval", False, "Evaluate on the development set.")
    define.boolean("do_predict", False, "Predict the test set and write test_results.tsv.")
    define.string("predict_file", None, "File to predict instead of the one in --data_dir.")
    define.integer(
        "eval_batch_size",
        RunSettings.eval_batch_size,
        "Sequences per evaluation batch and rank.",
    )
    define.integer("predict_batch_size", 8, "Sequences per prediction batch and rank.")
    define.integer(
        "max_seq_length", 128, "Maximum tokens of a sentence or a pair; the rest is cut off."
    )


def classification_settings(values: flags.FlagValues) -> ClassificationSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    warn_of_ignored(values)
    require(values, "output_dir", "task_name")
    task_name = find_task(values.task_name, flag="task_name")
    at_least_one(values, "predict_batch_size")
    run = finetuning_run_settings(
        values,
        do_eval="do_eval",
        eval_batch_size="eval_batch_size",
        file_flags=("data_dir", "predict_file"),
        does=("do_predict",),
    )
    return finetuning_settings(
        ClassificationSettings,
        values,
        run,
        task_name=task_name,
        data_dir=_data_dir(values),
        predict_file=optional_file(values, "predict_file"),
    )


def _data_dir(values: flags.FlagValues) -> Path | None:
    if values.do_train or values.do_eval or not values.predict_file:
        require(values, "data_dir")
    if not values.data_dir:
        return None
    data_dir = Path(values.data_dir)
    if not data_dir.is_dir():
        raise UserError(
            f"--data_dir={data_dir} is not a directory; give the directory of the task's files."
        )
    return data_dir
