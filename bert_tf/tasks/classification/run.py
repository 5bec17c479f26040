"""Classification of sentences and sentence pairs: fine-tuning on GLUE tasks and prediction."""

from __future__ import annotations

import functools

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
from bert_tf.tasks.classification.pooling import CLS, Pooling
from bert_tf.tasks.classification.prediction import (
    PROBABILITIES_NAME,
    ClassificationEvaluation,
    ClassificationPrediction,
)
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.finetuning.directory_run import (
    FileTask,
    OpenedFiles,
    check_trained_on,
    read_files,
    run_on_files,
)
from bert_tf.tasks.finetuning.run import (
    open_finetuning,
    report_seeds,
    run_with_seeds,
)
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run, begin


def run(settings: ClassificationSettings, *, pooling: Pooling = CLS) -> Results | None:
    """Trains, evaluates and predicts as the settings say, once or once per seed.

    ``pooling`` is how the head reads the encoder. Returns the results of the evaluation (with
    several seeds, those of the last), None without ``do_eval``. Raises UserError for bad input.
    """
    return run_with_seeds(settings, functools.partial(_run_once, pooling))


def _run_once(
    pooling: Pooling, settings: ClassificationSettings, by_seed: dict[int, Results]
) -> Results | None:
    """Runs once, and adds the results to those of earlier seeds."""
    task = GLUE_TASKS[settings.task_name]
    with begin(settings.run, settings.runtime) as run:
        results = run_on_files(open_classification(settings, run, pooling), run)
        if results is not None:
            by_seed[settings.run.seed] = results
            if run.ranks.is_chief:
                names = [f"eval_{name}" for name in task.metrics]
                report_seeds(settings, run, by_seed, names, digits=4)
        return results


def open_classification(
    settings: ClassificationSettings, run: Run, pooling: Pooling = CLS
) -> OpenedFiles:
    """Opens the network and the files of a run. Collective. Raises UserError for bad input."""
    task = GLUE_TASKS[settings.task_name]
    model, length = open_finetuning(
        settings, run, lambda config: ClassificationTask(config, task.num_outputs, pooling)
    )
    check_length(task, length)
    _check_classes(run, task)
    files = read_files(
        settings,
        find=functools.partial(find_split, task),
        read=functools.partial(read_glue, task),
        splits=(TRAIN, DEV, TEST),
    )
    of_files = FileTask(
        task.name,
        feature_stage,
        ClassificationEvaluation,
        ClassificationPrediction,
        PROBABILITIES_NAME,
    )
    max_records = len(files.train.rows) if files.train else 1
    return OpenedFiles(settings, model, length, max_records, files, of_files)


def _check_classes(run: Run, task: GlueTask) -> None:
    """Raises UserError if a run would use the head of another task."""
    names = [known.name for known in GLUE_TASKS.values()]
    check_trained_on(
        run,
        task.name,
        advice=lambda other: f"give --task_name={other}, or " if other in names else "",
    )
