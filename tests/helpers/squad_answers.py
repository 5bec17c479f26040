"""Answered questions for reports."""

from bert_tf.tasks.question_answering.examples import Answer, Example
from bert_tf.tasks.question_answering.report import AnsweredQuestion
from bert_tf.tasks.question_answering.scores import QuestionScore

CONTEXT = "The <old> mill & the \U0001f600 river \u05e0\u05d4\u05e8 stood still."

ANSWERS = (Answer("river", CONTEXT.index("river")),)


def answered(
    number=0,
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
    name = f"q{number}" if isinstance(number, int) else number
    example = Example(name, question, context, title, 0, tuple(answers), not answerable)
    score = QuestionScore(name, exact, f1, answerable)
    return AnsweredQuestion(example, predicted, span, score, null_odds, nbest)
