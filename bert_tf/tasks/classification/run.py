"""Classification of sentences and pairs: fine-tuning on GLUE tasks, scores and predictions."""

from __future__ import annotations

import functools

from bert_tf.config.settings import ClassificationSettings
from bert_tf.tasks.classification.features import check_length, feature_stage
from bert_tf.tasks.classification.formats import (
    DEV,
    GLUE_TASKS,
    TEST,
    TRAIN,
    GlueTask,
    find_split,
    read_glue,
)
from bert_tf.tasks.classification.prediction import (
    PROBABILITIES_NAME,
    ClassificationEvaluation,
    ClassificationPrediction,
)
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.finetuning.directory_run import (
    FileTask,
    check_trained_on,
    read_files,
    run_on_files,
)
from bert_tf.tasks.finetuning.run import (
    check_without_records,
    open_finetuning,
    report_seeds,
    run_with_seeds,
)
from bert_tf.train.context import RunContext, begin_run
from bert_tf.train.evaluation import Results


def run(settings: ClassificationSettings) -> Results | None:
    """Trains, evaluates and predicts according to the settings, once or with each of the seeds.

    Returns the results of the evaluation (with several seeds, those of the last one), None without
    ``do_eval``. Raises UserError for bad input.
    """
    return run_with_seeds(settings, _run_once)


def _run_once(settings: ClassificationSettings, by_seed: dict[int, Results]) -> Results | None:
    """A single run, which adds its results to those of earlier seeds."""
    task = GLUE_TASKS[settings.task_name]
    with begin_run(settings.run, settings.runtime) as context:
        settings, context, parts, model = open_finetuning(
            settings, context, lambda config: ClassificationTask(config, task.num_outputs)
        )
        check_length(task, settings.max_seq_length)
        _check_classes(context, task)
        files = read_files(
            settings,
            find=functools.partial(find_split, task),
            read=functools.partial(read_glue, task),
            splits=(TRAIN, DEV, TEST),
        )
        max_records = len(files.train.rows) if files.train else 1
        check_without_records(settings, context, model, max_records=max_records)
        of_files = FileTask(
            task.name,
            feature_stage,
            ClassificationEvaluation,
            ClassificationPrediction,
            PROBABILITIES_NAME,
        )
        results = run_on_files(settings, context, parts, model, files, of_files)
        if results is not None:
            by_seed[settings.run.seed] = results
            if context.ranks.is_chief:
                names = [f"eval_{name}" for name in task.metrics]
                report_seeds(settings, context, by_seed, names, digits=4)
        return results


def _check_classes(context: RunContext, task: GlueTask) -> None:
    """Raises UserError if a run would use the head of another task."""
    names = [known.name for known in GLUE_TASKS.values()]
    check_trained_on(
        context,
        task.name,
        advice=lambda other: f"give --task_name={other}, or " if other in names else "",
    )
