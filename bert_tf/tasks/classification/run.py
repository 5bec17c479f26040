"""Classification of sentences and sentence pairs: fine-tuning on GLUE tasks and prediction."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.classification.features import check_length, feature_stage
from bert_tf.tasks.classification.glue import DEV, GLUE_TASKS, TEST, TRAIN, GlueTask
from bert_tf.tasks.classification.glue_files import find_split, read_glue
from bert_tf.tasks.classification.long_texts import LongTexts
from bert_tf.tasks.classification.losses import (
    ClassificationLoss,
    balanced_weights,
    best_constant,
    rating_unit,
)
from bert_tf.tasks.classification.own_files import (
    OWN_PAIRS,
    OWN_TEXTS,
    TableSettings,
    Texts,
    first_fraction,
    own_task,
    read_texts,
    require_same_kind,
)
from bert_tf.tasks.classification.pooling import CLS, Pooling
from bert_tf.tasks.classification.prediction import (
    OWN_PREDICTIONS_NAME,
    PROBABILITIES_NAME,
    ClassificationEvaluation,
    ClassificationPrediction,
)
from bert_tf.tasks.classification.report import REPORT_NAME
from bert_tf.tasks.classification.settings import BALANCED, ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.classification.text_task import TextFile, TextTask
from bert_tf.tasks.finetuning.directory_run import (
    Files,
    FileTask,
    OpenedFiles,
    check_trained_on,
    read_files,
    run_on_files,
)
from bert_tf.tasks.finetuning.kept_settings import as_stored
from bert_tf.tasks.finetuning.run import open_finetuning, run_repeatedly
from bert_tf.train.checks import check_model_files, check_trains
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run, begin
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.tasks.finetuning.repeats import Repeats


def run(settings: ClassificationSettings, *, pooling: Pooling = CLS) -> Results | None:
    """Trains, evaluates and predicts as the settings say, once or once per seed.

    ``pooling`` is how the head reads the encoder. Returns the results of the evaluation (with
    several seeds, those of the last), None without ``do_eval``. Raises UserError for bad input.
    """
    return run_repeatedly(settings, functools.partial(_run_once, pooling))


def _run_once(
    pooling: Pooling, settings: ClassificationSettings, repeats: Repeats | None
) -> Results | None:
    """A single run, which adds its results to those of earlier repetitions."""
    with begin(settings.run, settings.runtime) as run:
        opened = open_classification(settings, run, pooling)
        results = run_on_files(opened, run)
        if run.keeps_files:
            _report_submissions(opened.files.test, run)
        if results is not None:
            run.message(f"the report is {settings.run.output_dir / REPORT_NAME}")
            if repeats is not None:
                names = opened.files.dev.score_names
                repeats.add(settings, run, results, names, figure=names[0], digits=4)
        return results


def _report_submissions(test: TextFile | None, run: Run) -> None:
    """Names the files that GLUE takes, if a test set of it was predicted."""
    if test is None or not isinstance(test.task, GlueTask):
        return
    names = filter(None, (test.task.submission(part.path.name) for part in test.parts))
    for name in names:
        run.message(f"the file for GLUE is {run.settings.output_dir / name}")


def open_classification(
    settings: ClassificationSettings, run: Run, pooling: Pooling = CLS
) -> OpenedFiles:
    """Opens the network and the files of a run. Collective. Raises UserError for bad input."""
    check_model_files(run, settings.bert_config_file, settings.distillation)
    # A published task has its own columns and labels.
    settings = as_stored(settings, run, without=TableSettings if settings.task_name else None)
    glue = settings.glue
    if glue is not None:
        task, files, classes = _published_files(glue, settings, run)
    else:
        task, files, classes = _own_files(settings, run)
    own_classes = classes.labels if glue is None else None
    settings.thresholds.check(task.classes, multi_label=task.multi_label)
    _check_trained_on(run, task)
    balanced = files.train and settings.loss.class_weights == BALANCED
    weights = balanced_weights(files.train) if balanced else None
    loss = ClassificationLoss(task.kind, weights, settings.loss.label_smoothing)
    bias = best_constant(files.train, weights) if files.train else 0.0
    unit = rating_unit(files.train) if files.train else 1.0
    model, length = open_finetuning(
        settings,
        run,
        lambda config: ClassificationTask(
            config, task.num_outputs, pooling, loss, bias, unit, own_classes
        ),
    )
    check_length(task, length)
    of_files = FileTask(
        task.name,
        functools.partial(_stage, settings.length),
        functools.partial(
            ClassificationEvaluation,
            thresholds=settings.thresholds,
            trains=settings.run.do_train,
        ),
        functools.partial(ClassificationPrediction, thresholds=settings.thresholds),
        PROBABILITIES_NAME if settings.task_name else OWN_PREDICTIONS_NAME,
        rate_factors=((rf"^({OUTPUT_WEIGHTS}|{OUTPUT_BIAS})$", unit),) if unit != 1 else (),
    )
    max_records = len(files.train.rows) if files.train else 1
    of_classes = {} if task.is_regression else {"loss": dataclasses.asdict(settings.loss)}
    record = _stored_model(run).record
    model = dataclasses.replace(
        model,
        classes=classes,
        chosen_on=record.chosen_on if record and run.start.checkpoint else None,
        ledger={**model.ledger, **of_classes},
    )
    return OpenedFiles(settings, model, length, max_records, files, of_files)


def _stage(long_texts: LongTexts, file: TextFile, **options: Any) -> SequenceStage:
    return feature_stage(file, long_texts=long_texts, **options)


def _published_files(
    task: GlueTask, settings: ClassificationSettings, run: Run
) -> tuple[TextTask, Files, Classes]:
    """The task, its files, and what is stored of it; tells of lines that were left out."""
    known = _stored_classes(run) or _taught_classes(settings)
    if known is not None:
        task = task.numbered_as(known.labels)
    files = read_files(
        settings,
        find=functools.partial(find_split, task),
        read=functools.partial(read_glue, task),
        splits=(TRAIN, DEV, TEST),
    )
    for file in files:
        if file is not None and file.skipped_lines:
            lines = f"{file.skipped_lines:,} {'line' if file.skipped_lines == 1 else 'lines'}"
            run.message(f"{file.path.name}: {lines} with too few columns left out")
    return task, files, task.stored_classes


def _own_files(settings: ClassificationSettings, run: Run) -> tuple[TextTask, Files, Classes]:
    """The task that a user's files describe, the files, and what is stored of it. Collective."""
    table, stored = settings.table, _stored_classes(run)
    read = functools.partial(read_texts, settings=table)
    texts = read_files(settings, find=_no_directory, read=read, splits=(TRAIN, DEV, TEST))
    if stored is not None and (texts.train is None or run.start.checkpoint is not None):
        require_same_kind(stored, table, source=_weights(run))
    names = None
    if run.ranks.is_chief and not table.regression:
        taught = _taught_classes(settings)
        names = _agree_on_classes(texts.train, run, table, stored, taught)
        _check_taught(settings, taught, names)
        fraction = first_fraction(names) if texts.train is not None else None
        if fraction is not None:
            run.message(
                f"the {len(names):,} classes are numbers such as {fraction}; if they are ratings, "
                "give --regression"
            )
    names = run.ranks.broadcast(names) or ()
    first = next(found for found in texts if found is not None)
    task = own_task(first.columns, table, names)
    classes = task.stored_classes
    if stored is not None and stored.labels == names:
        classes = dataclasses.replace(classes, thresholds=stored.thresholds)
    return task, Files(*(found and found.with_numbers(task) for found in texts)), classes


def _agree_on_classes(
    train: Texts | None,
    run: Run,
    table: TableSettings,
    stored: Classes | None,
    taught: Classes | None,
) -> tuple[str, ...]:
    """The classes of a run, by number.

    A run that resumes or does not train has those stored with its weights, as does one that trains
    further on some of them. Otherwise they are those of the teacher, if it knows all of the
    training file's, or else those of that file.
    """
    own = None if train is None else train.classes()
    if stored is not None and (
        own is None or run.start.checkpoint is not None or set(own) <= set(stored.labels)
    ):
        require_same_kind(stored, table, source=_weights(run))
        return stored.labels
    if own is not None and taught is not None and set(own) <= set(taught.labels):
        return taught.labels
    if own is not None:
        return own
    weights = _weights(run)
    if weights is None:
        check_trains(run)
    raise UserError(
        f"{weights} has no {MODEL_RECORD_NAME} next to it, so its classes are unknown; restore the "
        "file, or train with --do_train first."
    )


def _no_directory(directory: object, split: str, *, flag: str) -> Path:
    raise AssertionError(f"{directory}: {split} has a flag other than {flag}")


def _weights(run: Run) -> str | None:
    """The weights that the run starts from, resumed or given."""
    return run.start.checkpoint or run.settings.start.init_checkpoint or None


def _stored_classes(run: Run) -> Classes | None:
    """The classes of the weights that a run starts from; None if they have no such head."""
    return _stored_model(run).text_classes


def _stored_model(run: Run) -> ModelDirectory:
    source = _weights(run)
    return ModelDirectory() if source is None else ModelDirectory.of(source)


def _taught_classes(settings: ClassificationSettings) -> Classes | None:
    """The classes of the teacher; None without training by one, or if it does not name them."""
    if settings.distillation is None or not settings.run.do_train:
        return None
    path = settings.distillation.teacher_checkpoint
    require_checkpoint(path, flag="teacher_checkpoint")
    return ModelDirectory.of(path).text_classes


def _check_taught(
    settings: ClassificationSettings, taught: Classes | None, classes: tuple[str, ...]
) -> None:
    """Raises UserError if soft targets would compare different classes."""
    distillation = settings.distillation
    if taught is None or distillation is None or not distillation.alpha_ce:
        return
    if taught.labels != classes:
        raise UserError(
            f"--teacher_checkpoint={distillation.teacher_checkpoint} has the classes "
            f"{', '.join(taught.labels) or 'of a rating'}, and the student {', '.join(classes)}; "
            "give a teacher with the same ones in the same order, or --alpha_ce=0."
        )


def _check_trained_on(run: Run, task: TextTask) -> None:
    """Raises UserError if a run would use the head of another task."""
    advice = {known.name: f"give --task_name={known.name}, or " for known in GLUE_TASKS.values()}
    if not isinstance(task, GlueTask):
        advice[OWN_PAIRS] = "give --pair_column, or "
        advice[OWN_TEXTS] = "leave out --pair_column, or "
    check_trained_on(
        run,
        task.name,
        same_head=task.same_head if isinstance(task, GlueTask) else (),
        advice=lambda other: advice.get(other, ""),
    )
