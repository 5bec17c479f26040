"""Question answering: fine-tuning on SQuAD files, prediction, scores and the report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bert_tf.config.settings import SquadSettings
from bert_tf.inference.model_directory import ModelParts
from bert_tf.tasks.finetuning.run import (
    check_without_records,
    data_entries,
    directory_of_new_records,
    finetuning_job,
    obtain_records,
    open_finetuning,
    report_seeds,
    run_with_seeds,
)
from bert_tf.tasks.question_answering.answers import AnswerSettings, best_span_texts
from bert_tf.tasks.question_answering.examples import SquadFile, read_squad
from bert_tf.tasks.question_answering.features import feature_stage, most_windows
from bert_tf.tasks.question_answering.prediction import Questions, SpanEvaluation, is_scored
from bert_tf.tasks.question_answering.report.collect import Trained, write_squad_report
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.thresholds import (
    ThresholdPoint,
    best_threshold,
    threshold_curve,
)
from bert_tf.tasks.question_answering.windows import WindowSettings, fitting_windows
from bert_tf.train.context import RunContext, begin_run
from bert_tf.train.evaluation import Results
from bert_tf.train.job import Job, Model
from bert_tf.train.run import run_job
from bert_tf.util.errors import UserError

UNUSABLE_NAME = "unusable_answers.json"


def run(settings: SquadSettings) -> Results | None:
    """Trains, predicts and scores according to the settings, once or with each of the seeds.

    Returns the results of the prediction (with several seeds, those of the last one), None without
    ``do_predict``. Raises UserError for bad input.
    """
    return run_with_seeds(settings, _run_once)


def _run_once(settings: SquadSettings, by_seed: dict[int, Results]) -> Results | None:
    """A single run, which adds its results to those of earlier seeds."""
    with begin_run(settings.run, settings.runtime) as context:
        return _train_and_predict(settings, context, by_seed)


class Opened(NamedTuple):
    """A run whose files are open, before records are made.

    Attributes:
      settings, context: with the optimization settled and the arithmetic chosen.
      parts, model: of the network.
      train, predict: the files of questions that the run uses.
      max_records: an upper bound on the training records.
    """

    settings: SquadSettings
    context: RunContext
    parts: ModelParts
    model: Model
    train: SquadFile | None
    predict: SquadFile | None
    max_records: int


def open_run(settings: SquadSettings, context: RunContext) -> Opened:
    """Opens what a run uses, and checks all that does not depend on the records.

    Raises UserError for bad input.
    """
    settings, context, parts, model = open_finetuning(
        settings, context, lambda config: SpanTask(config, num_candidates=settings.n_best_size)
    )
    settings, context = _fit_windows(settings, context)
    train = _read(settings, training=True) if settings.run.do_train else None
    predict = _read_predict_file(settings, context) if settings.run.do_eval else None
    windows = _windows(settings)
    windows.validate()
    if settings.run.eval_every_steps is not None and not is_scored(predict):
        raise UserError(
            f"--eval_every_steps compares scores, but {predict.path} has no answers; drop the flag "
            "or give a file with answers."
        )
    max_records = most_windows(train, windows) if train else 1
    check_without_records(settings, context, model, max_records=max_records)
    return Opened(settings, context, parts, model, train, predict, max_records)


@contextlib.contextmanager
def job_on_first_questions(opened: Opened, count: int) -> Iterator[Job]:
    """The training job on the first questions alone, whose records are made for a dry run."""
    settings, context, parts, model, train, *_ = opened
    few = train.first(count)
    with directory_of_new_records(context, settings.features_dir) as directory:
        questions = _questions(settings, context, parts, few, directory, training=True)
        yield finetuning_job(
            settings, context, model=model, train=questions.features, evaluation=None
        )


def _train_and_predict(
    settings: SquadSettings, context: RunContext, by_seed: dict[int, Results]
) -> Results | None:
    settings, context, parts, model, train, predict, _ = open_run(settings, context)
    with directory_of_new_records(context, settings.features_dir) as directory:
        return _train_and_predict_on(
            settings,
            context,
            by_seed,
            parts=parts,
            model=model,
            train=train and _questions(settings, context, parts, train, directory, training=True),
            predict=predict
            and _questions(settings, context, parts, predict, directory, training=False),
        )


def _train_and_predict_on(
    settings: SquadSettings,
    context: RunContext,
    by_seed: dict[int, Results],
    *,
    parts: ModelParts,
    model: Model,
    train: Questions | None,
    predict: Questions | None,
) -> Results | None:
    evaluation = _evaluation(settings, context, parts, predict) if predict else None
    job = finetuning_job(
        settings,
        context,
        model=model,
        train=train.features if train else None,
        evaluation=evaluation,
    )
    unusable = train.squad.unusable if train else ()
    results = run_job(
        job,
        train_data=_data_entries(settings, parts, train, predict),
        data_names={"predict_sha256": "questions"},
        lists={UNUSABLE_NAME: unusable} if unusable else None,
    )
    if results is not None and predict.are_scored:
        by_seed[settings.run.seed] = results
        if context.ranks.is_chief:
            trained = _trained(job, train) if train else None
            _report(settings, context, predict, evaluation, by_seed=by_seed, trained=trained)
    return results


def _fit_windows(settings: SquadSettings, context: RunContext) -> tuple[SquadSettings, RunContext]:
    """Lowers the defaults of stride and question to a length that they would not suit."""
    defaulted = context.settings.defaulted
    if "max_seq_length" in defaulted or not _windows(settings).has_room:
        fitting = fitting_windows(settings.max_seq_length)
        for name in sorted(defaulted & {"doc_stride", "max_query_length"}):
            value = getattr(fitting, name)
            if value < getattr(settings, name):
                reason = f"for sequences of {settings.max_seq_length} tokens"
                context = context.with_default(name, value, reason)
                settings = dataclasses.replace(settings, **{name: value})
    return settings, context


def _windows(settings: SquadSettings) -> WindowSettings:
    return WindowSettings(settings.max_seq_length, settings.doc_stride, settings.max_query_length)


def _read(settings: SquadSettings, *, training: bool) -> SquadFile:
    flag = "train_file" if training else "predict_file"
    return read_squad(
        getattr(settings, flag),
        flag=flag,
        version_2_with_negative=settings.version_2_with_negative,
        needs_answers=training,
    )


def _read_predict_file(settings: SquadSettings, context: RunContext) -> SquadFile:
    """The questions to answer."""
    squad = _read(settings, training=False)
    if settings.max_predict_questions is not None:
        squad = squad.first(settings.max_predict_questions)
    if squad.first_of is not None:
        context.message(f"{squad} are answered; predictions and scores cover only these")
    return squad


def _questions(
    settings: SquadSettings,
    context: RunContext,
    parts: ModelParts,
    squad: SquadFile,
    new_records: Path,
    *,
    training: bool,
) -> Questions:
    """A file's questions and their records, which are written if they do not exist yet."""
    windows = _windows(settings)
    stage = feature_stage(
        squad,
        tokenizer_files=parts.tokenizer_files,
        windows=windows,
        training=training,
        num_workers=settings.num_workers,
    )
    kind = "train" if training else "predict"
    features = obtain_records(settings, context, new_records, stage, kind=kind)
    if training and squad.unusable and not settings.run.dry_run:
        listed = settings.run.output_dir / UNUSABLE_NAME
        context.message(f"{squad.path.name}: the skipped questions are listed in {listed}")
    return Questions(squad, features, windows)


def _evaluation(
    settings: SquadSettings, context: RunContext, parts: ModelParts, questions: Questions
) -> SpanEvaluation:
    return SpanEvaluation(
        questions,
        parts.tokenizer,
        parts.config,
        settings=AnswerSettings(
            n_best_size=settings.n_best_size,
            max_answer_length=settings.max_answer_length,
            version_2_with_negative=settings.version_2_with_negative,
            null_score_diff_threshold=settings.null_score_diff_threshold,
        ),
        ranks=context.ranks,
        batch_size=settings.run.eval_batch_size,
        length_buckets=settings.length_buckets,
    )


def _data_entries(
    settings: SquadSettings,
    parts: ModelParts,
    train: Questions | None,
    predict: Questions | None,
) -> dict[str, object]:
    """The ledger's entries on the data."""
    return {
        **data_entries(
            settings,
            parts,
            train=train.features if train else None,
            predict=predict.features if predict else None,
        ),
        "train_questions": len(train.squad.examples) if train else 0,
        "predict_records": len(predict.features) if predict else 0,
    }


def _trained(job: Job, train: Questions) -> Trained:
    windows = len(train.features)
    epochs = job.steps.last_position * job.batch.global_batch_size / windows
    return Trained(job.batch, epochs)


def _report(
    settings: SquadSettings,
    context: RunContext,
    questions: Questions,
    evaluation: SpanEvaluation,
    *,
    by_seed: Mapping[int, Results],
    trained: Trained | None,
) -> None:
    squad, predictions = questions.squad, evaluation.predictions
    results = by_seed[settings.run.seed]
    curve: list[ThresholdPoint] = []
    if settings.version_2_with_negative:
        curve = threshold_curve(squad, best_span_texts(squad, predictions), predictions.null_odds)
    path = write_squad_report(
        settings,
        squad,
        predictions,
        results,
        curve=curve,
        by_seed=by_seed,
        config=evaluation.config,
        trained=trained,
    )
    context.message(f"the report is {path}")
    if curve:
        best = best_threshold(curve)
        context.message(
            f"--null_score_diff_threshold={best.threshold:.4f} would be best for these questions: "
            f"exact_match {best.exact:.4f}  f1 {best.f1:.4f}"
        )
    report_seeds(settings, context, by_seed, ("exact_match", "f1"))
