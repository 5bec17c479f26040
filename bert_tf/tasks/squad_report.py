"""``report.html`` of a SQuAD run: what it is made of, collected from the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bert_tf.config.settings import SquadSettings
from bert_tf.squad.answers import Predictions, best_span_texts
from bert_tf.squad.examples import Example, SquadFile
from bert_tf.squad.report import QuestionRow, ReportData, write_report
from bert_tf.squad.scores import QuestionScore, question_scores
from bert_tf.squad.thresholds import ThresholdPoint, threshold_curve
from bert_tf.training.evaluation import Results
from bert_tf.training.run_log import EVALUATIONS, STEPS, read_history

REPORT_NAME = "report.html"


def write_squad_report(
    settings: SquadSettings,
    squad: SquadFile,
    predictions: Predictions,
    results: Results,
    *,
    by_seed: Mapping[int, Results],
) -> Path:
    """Writes the report into the output directory and returns its path.

    Args:
      settings: of the run.
      squad: the questions, with their answers.
      predictions: what the model answered.
      results: of the prediction.
      by_seed: results of each seed so far, for runs with several.
    """
    output_dir = settings.run.output_dir
    version_2 = settings.version_2_with_negative
    data = ReportData(
        title=f"Question answering: {squad.path.name}",
        created_from=_origin(settings, squad, results),
        results=results,
        questions=_rows(squad, predictions, version_2=version_2),
        threshold_curve=_curve(squad, predictions) if version_2 else (),
        chosen_threshold=settings.null_score_diff_threshold if version_2 else None,
        training_log=read_history(output_dir, STEPS),
        evaluation_log=read_history(output_dir, EVALUATIONS),
        seed_scores=by_seed if len(by_seed) > 1 else {},
    )
    path = output_dir / REPORT_NAME
    write_report(path, data)
    return path


def _origin(settings: SquadSettings, squad: SquadFile, results: Results) -> dict[str, object]:
    shown = ("max_seq_length", "doc_stride", "max_query_length", "max_answer_length", "n_best_size")
    return {
        "model": settings.run.output_dir.resolve().name,
        "started from": settings.run.init_checkpoint or "random weights",
        "questions": str(squad),
        "trained on": settings.train_file.name if settings.train_file else "nothing in this run",
        "step": results["global_step"],
        "learning rate": settings.optimization.learning_rate,
        "seed": settings.run.seed,
        **{name: getattr(settings, name) for name in shown},
    }


def _curve(squad: SquadFile, predictions: Predictions) -> list[ThresholdPoint]:
    answers = best_span_texts(squad, predictions)
    return threshold_curve(squad, answers, predictions.null_odds)


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
