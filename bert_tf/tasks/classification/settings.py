"""The settings of classification runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_tf.config.declared import setting
from bert_tf.tasks.classification.formats import GLUE_TASKS, find_task
from bert_tf.tasks.finetuning.settings import DirectorySettings


@dataclasses.dataclass(frozen=True)
class ClassificationSettings(DirectorySettings):
    """Fine-tuning and prediction for classification and regression of sentences and pairs.

    Attributes:
      task_name: a key of ``tasks.classification.formats.GLUE_TASKS``.
    """

    task_name: str = setting(
        "",
        f"GLUE task: {', '.join(task.name for task in GLUE_TASKS.values())}.",
        kind=str,
        parse=lambda given: find_task(given, flag="task_name"),
    )

    def contradictions(self) -> Iterator[str]:
        """Yields an error if no task is named."""
        if not self.task_name:
            yield "--task_name is required."
