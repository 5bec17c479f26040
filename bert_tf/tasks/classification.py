"""Classification of sentences and pairs: fine-tuning on GLUE tasks, scores and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bert_tf.checkpoint.model_files import model_files
from bert_tf.config.settings import ClassificationSettings
from bert_tf.errors import UserError
from bert_tf.glue.features import check_length, feature_stage
from bert_tf.glue.formats import (
    DEV,
    GLUE_TASKS,
    TEST,
    TRAIN,
    GlueFile,
    GlueTask,
    find_file,
    read_glue,
)
from bert_tf.inference.model_directory import ModelParts
from bert_tf.records.sequences import SequenceRecords
from bert_tf.tasks.classification_prediction import (
    PROBABILITIES_NAME,
    ClassificationEvaluation,
    ClassificationPrediction,
)
from bert_tf.tasks.classification_task import ClassificationTask
from bert_tf.tasks.finetuning import (
    check_without_records,
    data_entries,
    directory_of_new_records,
    finetuning_job,
    obtain_records,
    open_finetuning,
    predict_at_end,
    report_seeds,
    run_with_seeds,
)
from bert_tf.training.context import RunContext, begin_run
from bert_tf.training.evaluation import Results
from bert_tf.training.job import Model
from bert_tf.training.run import run_job


class Files(NamedTuple):
    """The files of a run, None for those that it does not use."""

    train: GlueFile | None
    dev: GlueFile | None
    test: GlueFile | None


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
        files = _read(settings)
        max_records = len(files.train.rows) if files.train else 1
        check_without_records(settings, context, model, max_records=max_records)
        with directory_of_new_records(context, settings.features_dir) as directory:
            results = _run_on(settings, context, parts, model, files, directory)
        if results is not None:
            by_seed[settings.run.seed] = results
            if context.ranks.is_chief:
                names = [f"eval_{name}" for name in task.metrics]
                report_seeds(settings, context, by_seed, names, digits=4)
        return results


def _check_classes(context: RunContext, task: GlueTask) -> None:
    """Raises UserError if a run would use the head of another task, whose shape may be the same.

    Training may start from the weights of any task.
    """
    source, record = context.start.checkpoint, context.record
    if source is None and context.settings.init_checkpoint and not context.settings.do_train:
        source = context.settings.init_checkpoint
        record = model_files(source).run_record
    trained_on = record.ledger.get("data", {}).get("task") if record else None
    if trained_on not in (None, task.name):
        raise UserError(
            f"{source} was trained on {trained_on}, not on {task.name}; give "
            f"--task_name={trained_on}, or choose another checkpoint or --output_dir."
        )


def _read(settings: ClassificationSettings) -> Files:
    task = GLUE_TASKS[settings.task_name]

    def read(split: str, needed: bool) -> GlueFile | None:
        if not needed:
            return None
        if split == TEST and settings.predict_file:
            path, flag = settings.predict_file, "predict_file"
        else:
            path, flag = find_file(task, settings.data_dir, split, flag="data_dir"), "data_dir"
        return read_glue(task, path, flag=flag, needs_labels=split != TEST)

    return Files(
        read(TRAIN, settings.run.do_train),
        read(DEV, settings.run.do_eval),
        read(TEST, settings.do_predict),
    )


def _run_on(
    settings: ClassificationSettings,
    context: RunContext,
    parts: ModelParts,
    model: Model,
    files: Files,
    new_records: Path,
) -> Results | None:
    def records(kind: str, file: GlueFile | None, *, training: bool) -> SequenceRecords | None:
        if file is None:
            return None
        stage = feature_stage(
            file,
            tokenizer_files=parts.tokenizer_files,
            max_seq_length=settings.max_seq_length,
            training=training,
            num_workers=settings.num_workers,
        )
        return obtain_records(settings, context, new_records, stage, kind=kind)

    train = records("train", files.train, training=True)
    dev = records("eval", files.dev, training=False)
    test = records("predict", files.test, training=False)
    common = {"ranks": context.ranks, "length_buckets": settings.length_buckets}
    evaluation = files.dev and ClassificationEvaluation(
        files.dev, dev, parts.config, batch_size=settings.run.eval_batch_size, **common
    )
    job = finetuning_job(settings, context, model=model, train=train, evaluation=evaluation)
    results = run_job(
        job,
        train_data={
            "task": GLUE_TASKS[settings.task_name].name,
            **data_entries(settings, parts, train=train, eval=dev, predict=test),
        },
        data_names={"eval_sha256": "development set", "predict_sha256": "file to predict"},
    )
    if test is not None:
        prediction = ClassificationPrediction(
            files.test, test, parts.config, batch_size=settings.predict_batch_size, **common
        )
        predict_at_end(job, prediction)
        if context.keeps_files:
            path = settings.run.output_dir / PROBABILITIES_NAME
            context.message(f"the predictions of {files.test.path} are in {path}")
    return results
