"""Answered questions for reports, and the logs of runs."""

import json
from pathlib import Path
from types import SimpleNamespace

from bert_tf.tasks.question_answering.answers import Answered, Predictions
from bert_tf.tasks.question_answering.examples import Answer, Example, SquadFile
from bert_tf.tasks.question_answering.metrics import QuestionScore
from bert_tf.tasks.question_answering.report import report_of, shown_question
from bert_tf.train.run_log import STEPS, RunLog

CONTEXT = "The <old> mill & the \U0001f600 river \u05e0\u05d4\u05e8 stood still."
ANSWERS = (Answer("river", CONTEXT.index("river")),)


def answered(
    name="q0",
    *,
    title="Mills",
    question="What stood still?",
    context=CONTEXT,
    answers=ANSWERS,
    predicted="mill",
    span=(10, 14),
    f1=0.0,
    exact=0.0,
    answerable=True,
    null_odds=None,
    nbest=(),
):
    """A question, the score of its answer, the answer, and how a page shows them."""
    example = Example(name, question, context, title, 0, tuple(answers), not answerable)
    score = QuestionScore(name, exact, f1, answerable)
    entries = [{"text": text, "probability": probability} for text, probability in nbest]
    answer = Answered(predicted, entries, null_odds, span)
    shown = shown_question(example, score, answer)
    return SimpleNamespace(example=example, score=score, answer=answer, shown=shown)


def write_report(directory, questions, results, *, curve=(), threshold=0.0):
    """Writes the report on answered questions with different names, and returns its path."""
    answers = Predictions({q.example.question_id: q.answer for q in questions}, threshold)
    squad = SquadFile(Path("dev.json"), tuple(q.example for q in questions))
    scores = [q.score for q in questions]
    report_of(squad, scores, answers, results, curve).write(directory)
    return directory / "report.html"


def write_logs(directory, steps, evaluations=()):
    """Writes the lines of training and of evaluations, each with its step."""
    lines = (json.dumps(line) + "\n" for line in steps)
    (directory / STEPS).write_text("".join(lines))
    log = RunLog(directory)
    for line in evaluations:
        log.evaluation(line["step"], {k: v for k, v in line.items() if k != "step"})
