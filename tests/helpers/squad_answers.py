"""Answered questions for reports."""

from bert_tf.tasks.question_answering.answers import Predictions
from bert_tf.tasks.question_answering.examples import Answer, Example
from bert_tf.tasks.question_answering.report import AnsweredQuestion, shown_question
from bert_tf.tasks.question_answering.scores import QuestionScore

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
    example = Example(name, question, context, title, 0, tuple(answers), not answerable)
    score = QuestionScore(name, exact, f1, answerable)
    entries = [{"text": text, "probability": probability} for text, probability in nbest]
    predictions = Predictions(
        {name: predicted},
        {name: entries},
        {} if null_odds is None else {name: null_odds},
        {name: span} if span else {},
    )
    return AnsweredQuestion(score, shown_question(example, score, predictions))
