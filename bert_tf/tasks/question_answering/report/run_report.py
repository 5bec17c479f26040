"""Writes the report of a question-answering run, from its job and results."""

from __future__ import annotations

from collections.abc import Mapping

from bert_tf.finetune.evaluation import FileEvaluation
from bert_tf.tasks.question_answering.answers import best_span_texts
from bert_tf.tasks.question_answering.examples import SquadFile
from bert_tf.tasks.question_answering.report.collect import Trained, write_squad_report
from bert_tf.tasks.question_answering.settings import SquadSettings
from bert_tf.tasks.question_answering.thresholds import (
    ThresholdPoint,
    best_threshold,
    threshold_curve,
)
from bert_tf.train.evaluation import Results
from bert_tf.train.job import Job


def report_run(
    settings: SquadSettings,
    train: SquadFile | None,
    squad: SquadFile,
    job: Job,
    by_seed: Mapping[int, Results],
) -> None:
    """Writes the report of a run whose questions have answers, and logs its main result.

    Args:
      settings: what the user requested, with lengths lowered where necessary.
      train, squad: the questions for training, and those that were answered.
      job: the job, already executed.
      by_seed: the results of each seed so far.
    """
    evaluation = job.data.evaluation
    if not isinstance(evaluation, FileEvaluation) or evaluation.answers is None:
        raise ValueError("the job has answered no questions")
    predictions = evaluation.answers
    curve: list[ThresholdPoint] = []
    if settings.answers.version_2_with_negative:
        curve = threshold_curve(squad, best_span_texts(squad, predictions), predictions.null_odds)
    path = write_squad_report(
        settings,
        squad,
        predictions,
        by_seed[settings.run.seed],
        curve=curve,
        by_seed=by_seed,
        config=job.model.config,
        trained=_trained(train, job) if train else None,
    )
    job.run.message(f"the report is {path}")
    if curve:
        best = best_threshold(curve)
        job.run.message(
            f"--null_score_diff_threshold={best.threshold:.4f} would be best for these questions: "
            f"exact_match {best.exact:.4f}  f1 {best.f1:.4f}"
        )


def _trained(questions: SquadFile, job: Job) -> Trained:
    batch, windows = job.plan.batch, job.data.training.num_records
    epochs = job.plan.steps.last_position * batch.global_batch_size / windows
    return Trained(questions.path.name, batch, epochs)
