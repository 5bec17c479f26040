"""Collects the data for ``report.html`` of a SQuAD run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_tf.model.config import BertConfig
from bert_tf.tasks.question_answering.answers import Predictions
from bert_tf.tasks.question_answering.examples import Example, SquadFile
from bert_tf.tasks.question_answering.report.page import QuestionRow, ReportData, write_report
from bert_tf.tasks.question_answering.scores import QuestionScore, question_scores
from bert_tf.tasks.question_answering.settings import SquadSettings
from bert_tf.tasks.question_answering.thresholds import ThresholdPoint
from bert_tf.train.evaluation import Results
from bert_tf.train.run_log import EVALUATIONS, STEPS, read_history
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.progress import format_duration

REPORT_NAME = "report.html"


@dataclasses.dataclass(frozen=True)
class Trained:
    """The training of a run, earlier starts included.

    Attributes:
      questions: the name of the file of questions.
      batch: its batch plan.
      epochs: passes over the training windows.
    """

    questions: str
    batch: BatchPlan
    epochs: float


def write_squad_report(
    settings: SquadSettings,
    squad: SquadFile,
    predictions: Predictions,
    results: Results,
    *,
    curve: Sequence[ThresholdPoint],
    by_seed: Mapping[int, Results],
    config: BertConfig,
    trained: Trained | None,
) -> Path:
    """Writes the report to the output directory and returns its path.

    Args:
      settings: the run's settings.
      squad: the questions and their answers.
      predictions: the model's answers.
      results: the results of the prediction.
      curve: the scores by threshold; empty for SQuAD 1.1.
      by_seed: the results of each seed so far, if there are several.
      config: the model's configuration.
      trained: the training; None if the run only predicts.
    """
    output_dir = settings.run.output_dir
    version_2 = settings.answers.version_2_with_negative
    training_log = read_history(output_dir, STEPS)
    data = ReportData(
        title=f"Question answering: {squad.path.name}",
        created_from={
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "model": _model(settings, config),
            "questions": str(squad),
            **_training(trained, training_log),
        },
        settings=_settings(settings, results),
        results=results,
        questions=_rows(squad, predictions, version_2=version_2),
        threshold_curve=curve,
        chosen_threshold=settings.answers.null_score_diff_threshold if version_2 else None,
        training_log=training_log,
        evaluation_log=read_history(output_dir, EVALUATIONS),
        seed_scores=by_seed if len(by_seed) > 1 else {},
    )
    path = output_dir / REPORT_NAME
    write_report(path, data)
    return path


def _model(settings: SquadSettings, config: BertConfig) -> str:
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    start = settings.run.start.init_checkpoint
    origin = f"from {Path(start).name}" if start else "from random weights"
    return f"{settings.run.output_dir.resolve().name} ({size}; {origin})"


def _training(trained: Trained | None, log: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """The report's entries on training."""
    if trained is None:
        return {"trained on": "nothing in this run"}
    seconds = seconds_of_training(log, trained.batch.global_batch_size)
    return {
        "trained on": trained.questions,
        "epochs": f"{trained.epochs:.3g}",
        "batch": trained.batch.global_batch_size,
        **({"duration": f"{format_duration(seconds)} of training"} if seconds else {}),
    }


def seconds_of_training(log: Sequence[Mapping[str, float]], global_batch_size: int) -> float:
    """The time spent on updates, from the rates in a training log; 0 if it has none.

    Excludes start-up, checkpoints and evaluations.
    """
    seconds = done = 0.0
    for line in log:
        rate = line.get("sequences_per_second")
        if rate:
            seconds += (line["step"] - done) * global_batch_size / rate
            done = line["step"]
    return seconds


def _settings(settings: SquadSettings, results: Results) -> dict[str, object]:
    return {
        "init_checkpoint": settings.run.start.init_checkpoint or "none",
        "step": results["global_step"],
        "learning_rate": settings.optimization.schedule.learning_rate,
        "seed": settings.run.seed,
        "max_seq_length": settings.max_seq_length,
        "doc_stride": settings.doc_stride,
        "max_query_length": settings.max_query_length,
        "max_answer_length": settings.answers.max_answer_length,
        "n_best_size": settings.answers.n_best_size,
    }


def _rows(squad: SquadFile, predictions: Predictions, *, version_2: bool) -> list[QuestionRow]:
    found = question_scores(squad, predictions.answers, version_2=version_2)
    scores = {score.question_id: score for score in found}
    return [_row(e, predictions, scores[e.question_id]) for e in squad.examples]


def _row(example: Example, predictions: Predictions, score: QuestionScore) -> QuestionRow:
    key = example.question_id
    return QuestionRow(
        question_id=key,
        title=example.title,
        question=example.question,
        context=example.context,
        answers=example.answers,
        predicted_text=predictions.answers[key],
        predicted_span=predictions.spans.get(key),
        f1=score.f1,
        exact=score.exact,
        answerable=score.answerable,
        null_odds=predictions.null_odds.get(key),
        nbest=[(entry["text"], entry["probability"]) for entry in predictions.nbest[key]],
    )
