"""Token labels: fine-tuning on CoNLL's files, scores and predictions."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import open_with_heads
from bert_tf.model_directory.classes import WORD_LABELS, Classes
from bert_tf.model_directory.directory import require_checkpoint
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.distillation.settings import DistillationSettings
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
from bert_tf.tasks.tagging.chunks import without_prefix, without_type
from bert_tf.tasks.tagging.features import feature_stage
from bert_tf.tasks.tagging.formats import (
    DEV,
    TEST,
    TRAIN,
    TaggedFile,
    check_labels,
    find_split,
    read_tagged,
    unknown_labels,
)
from bert_tf.tasks.tagging.prediction import (
    PREDICTIONS_NAME,
    TaggingEvaluation,
    TaggingPrediction,
    figure_name,
)
from bert_tf.tasks.tagging.report import REPORT_NAME
from bert_tf.tasks.tagging.settings import TaggingSettings
from bert_tf.tasks.tagging.task import TAGGING_HEAD, TaggingTask
from bert_tf.tasks.tagging.windows import WindowSettings
from bert_tf.train.checks import check_has_heads, check_model_files, check_trains
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run, begin
from bert_tf.util.errors import UserError, short_repr

if TYPE_CHECKING:
    from bert_tf.tasks.finetuning.repeats import Repeats

# The task's entry in ledgers, where classification has the name of a GLUE task.
TASK_NAME = "labels of words"
_MOST_USED_ONCE = 36  # labels; with more, the columns of the training file may be swapped


def run(settings: TaggingSettings) -> Results | None:
    """Trains, evaluates and predicts as the settings say, once or once per seed.

    Returns the results of the evaluation (with several seeds, those of the last), None without
    ``do_eval``. Raises UserError for bad input.
    """
    return run_repeatedly(settings, _run_once)


def _run_once(settings: TaggingSettings, repeats: Repeats | None) -> Results | None:
    """Runs once, and adds the results to those of earlier repetitions."""
    with begin(settings.run, settings.runtime) as run:
        opened = open_tagging(settings, run)
        results = run_on_files(opened, run)
        if results is not None:
            run.message(f"the report is {settings.run.output_dir / REPORT_NAME}")
            if repeats is not None:
                name = figure_name(opened.files.dev)
                repeats.add(settings, run, results, [name], figure=name, digits=4)
        return results


def open_tagging(settings: TaggingSettings, run: Run) -> OpenedFiles:
    """Opens the network and the files of a run. Collective. Raises UserError for bad input."""
    settings = as_stored(settings, run)
    WindowSettings(settings.max_seq_length).validate()
    check_model_files(run, settings.bert_config_file, settings.distillation)
    check_trained_on(run, TASK_NAME)
    files = read_files(settings, find=find_split, read=read_tagged, splits=(TRAIN, DEV, TEST))
    labels = _agree_on_labels(settings, run, files.train)
    _check_files(settings, run, files, labels)
    bias = _log_frequencies(files.train, labels) if files.train else 0.0
    model, length = open_finetuning(
        settings, run, lambda config: TaggingTask(config, len(labels), bias)
    )
    of_files = FileTask(
        TASK_NAME,
        functools.partial(_stage, settings.doc_stride, labels, files),
        functools.partial(TaggingEvaluation, labels),
        functools.partial(TaggingPrediction, labels),
        PREDICTIONS_NAME,
    )
    model = dataclasses.replace(model, classes=Classes(WORD_LABELS, labels))
    max_records = files.train.num_words if files.train else 1
    return OpenedFiles(settings, model, length, max_records, files, of_files)


def _stage(
    doc_stride: int | None,
    labels: tuple[str, ...],
    files: Files,
    file: TaggedFile,
    *,
    training: bool,
    max_seq_length: int,
    **options: Any,
) -> SequenceStage:
    """The stage for a file; a file to evaluate has labels too, for the loss."""
    windows = WindowSettings(max_seq_length, doc_stride)
    has_labels = training or file is files.dev
    return feature_stage(file, windows=windows, labels=labels if has_labels else None, **options)


def _check_files(
    settings: TaggingSettings, run: Run, files: Files, labels: tuple[str, ...]
) -> None:
    """Checks the labels of the files.

    Raises UserError if the model has a single label, if the training set has one that the model
    does not have, if the development set has no others, and if a file has entities both with and
    without a type.
    """
    if files.train is not None:
        flag = "train_file" if settings.train_file else "data_dir"
        check_labels(files.train, labels, flag=flag)
        if len(labels) < 2:
            raise UserError(
                f"--{flag}: {files.train.path} has only the label {short_repr(*labels)}, so there "
                "is nothing to distinguish; give a file with two labels or more."
            )
        _check_scheme(files.train, run, flag=flag)
        rare = {label for label, count in files.train.label_counts.items() if count == 1}
        if len(rare) > _MOST_USED_ONCE:
            line, label = files.train.first_use(rare)
            run.warn(
                f"{files.train.path.name}: {len(rare):,} of {len(files.train.labels):,} labels are "
                f"used once, such as {short_repr(label)} (line {line}); the label must be the last "
                "column of a line, and the word the first"
            )
    if files.dev is None:
        return
    flag = "eval_file" if settings.eval_file else "data_dir"
    unknown = unknown_labels(files.dev, labels)
    if len(unknown) == len(files.dev.labels):
        check_labels(files.dev, labels, flag=flag)
    if unknown:
        shown = ", ".join(f"{label} of {count:,} words" for label, count in unknown.items())
        run.message(
            f"{files.dev.path.name}: the model does not have the labels {shown}; these words count "
            "as wrong, and not in eval_loss"
        )
    _check_scheme(files.dev, run, flag=flag)


def _check_scheme(file: TaggedFile, run: Run, *, flag: str) -> None:
    """Says if labels keep a file from being scored by entities; raises UserError for a mixture."""
    untyped, unprefixed = without_type(file.labels), without_prefix(file.labels)
    if untyped:
        line, label = file.first_use(untyped)
        raise UserError(
            f"--{flag}: line {line} of {file.path} has the label {label!r} without a type, which "
            "the labels of other lines have; correct it."
        )
    if unprefixed:
        line, label = file.first_use(unprefixed)
        run.message(
            f"{file.path.name}: the label {short_repr(label)} (line {line}) has none of the "
            "prefixes B-, I- (M-), E- (L-) and S- (U-), so there is the accuracy of words but no "
            "F1 of entities"
        )


def _log_frequencies(train: TaggedFile, labels: tuple[str, ...]) -> tuple[float, ...]:
    """Where the bias of a new head starts, as classifiers' do (losses.best_constant)."""
    counts = train.label_counts
    total = train.num_words + len(labels)  # one word more of each label, so that all are finite
    return tuple(math.log((counts[label] + 1) / total) for label in labels)


def _agree_on_labels(
    settings: TaggingSettings, run: Run, train: TaggedFile | None
) -> tuple[str, ...]:
    """The labels of a run, by class number. Collective; only rank 0 looks for them.

    They are those stored with the weights that the run starts from; or else the teacher's, since
    soft targets compare classes; or else those of the training file, sorted. Raises UserError if
    there is nothing to train or evaluate, and if labels contradict each other.
    """
    labels = None
    if run.ranks.is_chief:
        own = _stored_labels(run)
        distillation = settings.distillation if settings.run.do_train else None
        taught = None if distillation is None else _teachers_labels(distillation, own)
        labels = own or taught or tuple(train.labels if train is not None else ())
    return run.ranks.broadcast(labels)


def _stored_labels(run: Run) -> tuple[str, ...] | None:
    """The labels of the weights that a run starts from; None if it starts without a head."""
    checkpoint, initial = run.start.checkpoint, run.settings.start.init_checkpoint
    if checkpoint is not None:
        labels = open_source(checkpoint).labels
        if labels is None:
            raise UserError(
                f"{checkpoint} has no {MODEL_RECORD_NAME} next to it, so its labels are unknown; "
                "restore the file, or choose another --output_dir."
            )
        return labels
    if not initial:
        check_trains(run)
        return None
    source = open_with_heads(initial, [TAGGING_HEAD])
    if source.labels is None:
        check_has_heads(initial, [TAGGING_HEAD], run)
    return source.labels


def _teachers_labels(
    settings: DistillationSettings, own: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The teacher's labels; raises UserError if soft targets need the student's and they differ."""
    path = settings.teacher_checkpoint
    require_checkpoint(path, flag="teacher_checkpoint")
    taught = open_source(path).labels
    if settings.alpha_ce and own is not None and taught not in (None, own):
        raise UserError(
            f"--teacher_checkpoint={path} has the labels {', '.join(taught)}, and the student "
            f"{', '.join(own)}; give a teacher with the same ones in the same order, or "
            "--alpha_ce=0."
        )
    return taught
