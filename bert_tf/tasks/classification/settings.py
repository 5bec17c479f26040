"""The settings of classification runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_tf.config.declared import Settings, group, setting
from bert_tf.tasks.classification.glue import GLUE_TASKS, find_task
from bert_tf.tasks.classification.long_texts import WINDOWS, LongTexts
from bert_tf.tasks.classification.own_files import TableSettings
from bert_tf.tasks.finetuning.settings import DirectorySettings
from bert_tf.util.options import Interval

EQUAL, BALANCED = "equal", "balanced"


@dataclasses.dataclass(frozen=True)
class LossSettings(Settings):
    """What a classifier is trained for."""

    class_weights: str = setting(
        EQUAL,
        "balanced: rare classes count for more, in proportion to their rarity.",
        choices=(EQUAL, BALANCED),
    )
    label_smoothing: float = setting(
        0.0,
        "Part of each label that all classes share, as 0.1.",
        bounds=Interval(0, 1, open_high=True),
    )


@dataclasses.dataclass(frozen=True)
class ClassificationSettings(DirectorySettings):
    """Fine-tuning and prediction for classification and regression of sentences and pairs.

    Attributes:
      task_name: a key of ``tasks.classification.glue.GLUE_TASKS``, "" for a user's own files.
    """

    task_name: str = setting(
        "",
        f"GLUE task: {', '.join(task.name for task in GLUE_TASKS.values())}. Not for own files.",
        kind=str,
        parse=lambda given: find_task(given, flag="task_name") if given else "",
    )
    table: TableSettings = group(TableSettings)
    loss: LossSettings = group(LossSettings)
    length: LongTexts = group(LongTexts)

    def contradictions(self) -> Iterator[str]:
        """Actions without files, and what one kind of labels or files does not have."""
        yield from super().contradictions()
        yield from self._missing_files()
        has_pairs = self.table.pair_column or (
            self.task_name and GLUE_TASKS[self.task_name].second is not None
        )
        if has_pairs and self.length.long_texts == WINDOWS:
            yield "--long_texts=windows is for single texts, not for pairs; give another value."
        is_rating = self.table.regression or (
            self.task_name and GLUE_TASKS[self.task_name].is_regression
        )
        if is_rating and self.loss != LossSettings():
            yield (
                "--class_weights and --label_smoothing are for classes, but ratings are predicted; "
                "leave them out."
            )
        if self.task_name and self.table != TableSettings():
            yield (
                f"--task_name={self.task_name} says what the columns and labels are; leave out the "
                "flags that describe a table of your own, or --task_name."
            )

    def _missing_files(self) -> Iterator[str]:
        """Without a task, every file is named by its flag."""
        if self.task_name:
            return
        if self.data_dir is not None or not self.files_given:
            yield (
                "give --task_name for a task of GLUE, or files of your own as --train_file, "
                "--eval_file and --predict_file."
            )
        for action, flag in self.missing_files():
            yield f"--{action} needs --{flag}, or --task_name and --data_dir."
