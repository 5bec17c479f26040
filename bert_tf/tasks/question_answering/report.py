"""``report.html`` of question answering: scores, charts, and every question with its answer."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.finetune.evaluation import FileEvaluation
from bert_tf.finetune.report import REPORT_NAME, Log, run_charts
from bert_tf.tasks.question_answering.answers import Predictions, best_span_texts
from bert_tf.tasks.question_answering.examples import Example, SquadFile
from bert_tf.tasks.question_answering.metrics import (
    ThresholdPoint,
    best_threshold,
    threshold_curve,
)
from bert_tf.tasks.question_answering.scores import QuestionScore, question_scores
from bert_tf.tasks.question_answering.settings import SquadSettings
from bert_tf.train.evaluation import Results
from bert_tf.train.job import Job
from bert_tf.train.run_log import EVALUATIONS, STEPS, read_history
from bert_tf.util.pages import page
from bert_tf.util.pages.charts import Labels, Line, Marker, line_chart
from bert_tf.util.pages.page import Examples, Part, Section, Table, write_page
from bert_tf.util.progress import format_duration

OUTCOMES = ("exact", "partly right", "wrong")
_MOST_CANDIDATES = 10  # of the n-best list; with more, pages of large files open slowly

# Name of a score in the results -> its name in large type.
_FIGURES = {
    "f1": "F1",
    "exact_match": "Exact match",
    "exact": "Exact match",
    "HasAns_f1": "With an answer: F1",
    "NoAns_f1": "Without an answer: F1",
}
_OF_SEEDS = ("exact_match", "exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1")

# Names of filters, by which tables group the questions, too.
_OUTCOME, _TYPE, _LENGTH = "Outcome", "Question type", "Answer length"
# The maximum number of words in each group of answers, and the group's name.
_LENGTHS = ((0, "no answer"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"))
_LONGEST = "11+"
_HOW_MANY, _OTHER = "how many/much", "other"
_QUESTION_WORDS = {"whom": "who", "whose": "who"} | {
    word: word for word in ("who", "what", "when", "where", "which", "why", "how")
}
_GROUPS = {
    _OUTCOME: OUTCOMES,
    _LENGTH: (*(name for _, name in _LENGTHS), _LONGEST),
    _TYPE: ("who", "what", "when", "where", "which", "why", _HOW_MANY, "how", _OTHER),
}
_DEVIATIONS = 1.96  # 95 % of a normal distribution lies within so many of its mean


class AnsweredQuestion(NamedTuple):
    """The scores of a question's answer, and how the page shows both."""

    score: QuestionScore
    shown: page.Example


def answered_questions(
    squad: SquadFile, predictions: Predictions, *, version_2: bool
) -> list[AnsweredQuestion]:
    """Every question with its answer and the scores by the rules of SQuAD v1.1 or v2.0."""
    scores = question_scores(squad, predictions.answers, version_2=version_2)
    return [
        AnsweredQuestion(score, shown_question(example, score, predictions))
        for example, score in zip(squad.examples, scores)
    ]


def shown_question(
    example: Example, score: QuestionScore, predictions: Predictions
) -> page.Example:
    """A question with its answer, as the page shows it."""
    key = example.question_id
    predicted, span = predictions.answers[key], predictions.spans.get(key)
    nbest = [(entry["text"], entry["probability"]) for entry in predictions.nbest[key]]
    confidence = next((p for text, p in nbest if text == predicted), 0.0)
    verdict, kind = outcome(score), question_type(example.question)
    article = example.title.replace("_", " ")
    odds = predictions.null_odds.get(key)
    # Answers that are not found at their offset in the context are left out.
    true = {
        (start, start + len(text))
        for text, start in example.answers
        if text and start >= 0 and example.context.startswith(text, start)
    }
    return page.Example(
        key,
        example.question,
        example.context,
        marks={"true": sorted(true), "predicted": [span] if span and predicted else []},
        answers={
            "true": list(dict.fromkeys(text for text, _ in example.answers)),
            "predicted": [predicted] if predicted else [],
        },
        facts=[
            *(verdict, f"F1 {100 * score.f1:.1f}", kind, article),
            *([] if odds is None else [f"null odds {odds:.4g}"]),
        ],
        filters={
            _OUTCOME: verdict,
            _TYPE: kind,
            _LENGTH: answer_length(example, score),
            "Answerable": "yes" if score.answerable else "no",
            "Article": article,
        },
        orders={
            "worst F1 first": score.f1,
            "best F1 first": -score.f1,
            "most confident wrong first": -OUTCOMES.index(verdict) - confidence,
        },
        candidates=nbest[:_MOST_CANDIDATES],
    )


def outcome(score: QuestionScore) -> str:
    """One of ``OUTCOMES``; a wrong answer has no word in common with a true one."""
    if score.exact >= 1:
        return OUTCOMES[0]
    return OUTCOMES[1] if score.f1 > 0 else OUTCOMES[2]


def question_type(question: str) -> str:
    """The group of the first question word anywhere in a question."""
    words = re.findall(r"[a-z]+", question.lower())
    for word, following in zip(words, [*words[1:], ""]):
        if word == "how" and following in ("many", "much"):
            return _HOW_MANY
        if word in _QUESTION_WORDS:
            return _QUESTION_WORDS[word]
    return _OTHER


def answer_length(example: Example, score: QuestionScore) -> str:
    """The group for the number of words, separated by blanks, in the first true answer."""
    if not score.answerable or not example.answers:
        return _LENGTHS[0][1]
    num_words = max(1, len(example.answers[0].text.split()))
    return next((name for limit, name in _LENGTHS if num_words <= limit), _LONGEST)


def report_run(
    settings: SquadSettings,
    train: SquadFile | None,
    squad: SquadFile,
    job: Job,
    by_seed: Mapping[int, Results],
) -> None:
    """Writes the report of an executed job whose questions have answers, and logs its main result.

    ``train`` and ``squad`` are the questions for training, and those that were answered.
    """
    evaluation = job.data.evaluation
    if not isinstance(evaluation, FileEvaluation) or evaluation.answers is None:
        raise ValueError("the job has answered no questions")
    predictions, output_dir = evaluation.answers, settings.run.output_dir
    version_2 = settings.answers.version_2_with_negative
    curve: list[ThresholdPoint] = []
    if version_2:
        curve = threshold_curve(squad, best_span_texts(squad, predictions), predictions.null_odds)
    training = read_history(output_dir, STEPS)
    path = output_dir / REPORT_NAME
    write_report(
        path,
        f"Question answering: {squad.path.name}",
        answered_questions(squad, predictions, version_2=version_2),
        by_seed[settings.run.seed],
        details={
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "model": _model(settings, job),
            "questions": str(squad),
            **(_training(train, job, training) if train else {"trained on": "nothing in this run"}),
        },
        curve=curve,
        threshold=settings.answers.null_score_diff_threshold,
        training=training,
        evaluations=read_history(output_dir, EVALUATIONS),
        by_seed=by_seed,
    )
    job.run.message(f"the report is {path}")
    if curve:
        best = best_threshold(curve)
        job.run.message(
            f"--null_score_diff_threshold={best.threshold:.4f} would be best for these questions: "
            f"exact_match {best.exact:.4f}  f1 {best.f1:.4f}"
        )


def _model(settings: SquadSettings, job: Job) -> str:
    config, start = job.model.config, settings.run.start.init_checkpoint
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    origin = f"from {Path(start).name}" if start else "from random weights"
    return f"{settings.run.output_dir.resolve().name} ({size}; {origin})"


def _training(questions: SquadFile, job: Job, log: Log) -> dict[str, object]:
    """The training of the run, earlier starts included."""
    batch = job.plan.batch.global_batch_size
    seconds = seconds_of_training(log, batch)
    duration = {"duration": f"{format_duration(seconds)} of training"} if seconds else {}
    epochs = job.plan.last_position * batch / job.training.num_records
    return {
        "trained on": questions.path.name,
        "epochs": f"{epochs:.3g}",
        "batch": batch,
        **duration,
    }


def seconds_of_training(log: Log, global_batch_size: int) -> float:
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


def write_report(
    path: Path,
    title: str,
    questions: Sequence[AnsweredQuestion],
    results: Mapping[str, float],
    *,
    details: Mapping[str, object],
    curve: Sequence[ThresholdPoint],
    threshold: float,
    training: Log,
    evaluations: Log,
    by_seed: Mapping[int, Mapping[str, float]],
) -> None:
    """Writes the page, atomically, of at least one question.

    ``results`` are in percent, under the keys of the official scripts; ``curve`` is empty for SQuAD
    1.1, otherwise ``threshold`` is that of the predictions. ``training`` and ``evaluations`` are
    the lines of log.jsonl and eval_log.jsonl.
    """
    figures = {name: f"{results[key]:.2f}" for key, name in _FIGURES.items() if key in results}
    if curve:
        best = best_threshold(curve)
        figures[f"Best F1, at threshold {best.threshold:.3f}"] = f"{best.f1:.2f}"
    charted = [name for name in ("f1", "exact_match", "exact") if name in results]
    charts = run_charts(training, evaluations, charted=charted, y_label="percent")
    tables = [_groups(name, questions) for name in _GROUPS]
    if len(by_seed) > 1:
        tables.append(_seeds(by_seed))
    names = [(name, f"{value:,.10g}") for name, value in results.items()]
    parts: list[Part] = [
        Section(
            "Results",
            figures=figures,
            details=details,
            tables=tables,
            charts=[*charts, *([_threshold_chart(curve, threshold)] if curve else [])],
        ),
        Examples("Questions", [question.shown for question in questions]),
        Section("All scores", tables=[Table("By their official names", ("score", "value"), names)]),
    ]
    write_page(path, title, parts)


def _groups(name: str, questions: Sequence[AnsweredQuestion]) -> Table:
    """The scores of each group of questions that has any."""
    members: dict[str, list[QuestionScore]] = {group: [] for group in _GROUPS[name]}
    for question in questions:
        members[question.shown.filters[name]].append(question.score)
    rows = [
        (
            group,
            f"{len(scores):,}",
            f"{100 * len(scores) / len(questions):.1f}",
            *_mean([score.f1 for score in scores]),
            *_mean([score.exact for score in scores]),
        )
        for group, scores in members.items()
        if scores
    ]
    columns = (name.lower(), "questions", "percent", "F1", "95 %", "exact", "95 %")
    return Table(f"{name}, with 95 % intervals", columns, rows, filter_name=name)


def _mean(values: Sequence[float]) -> tuple[str, str]:
    """The mean of scores from 0 to 1 in percent, and its interval."""
    mean = statistics.fmean(values)
    low, high = interval(mean, len(values))
    return f"{100 * mean:.1f}", f"{100 * low:.1f}–{100 * high:.1f}"


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a mean score from 0 to 1 over ``count`` questions.

    Wilson's interval for a proportion; a mean F1, of values between 0 and 1, varies no more.
    """
    z2 = _DEVIATIONS**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    spread = math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) * _DEVIATIONS
    half = spread / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _seeds(by_seed: Mapping[int, Mapping[str, float]]) -> Table:
    """One row per seed, then the mean and the sample standard deviation."""
    names = [name for name in _OF_SEEDS if all(name in scores for scores in by_seed.values())]

    def row(name: str, values: Iterable[float]) -> list[str]:
        return [name, *(f"{value:.2f}" for value in values)]

    columns = [[scores[name] for scores in by_seed.values()] for name in names]
    rows = [row(str(seed), (scores[name] for name in names)) for seed, scores in by_seed.items()]
    rows += [
        row("mean", map(statistics.mean, columns)),
        row("± std", map(statistics.stdev, columns)),
    ]
    return Table("Scores by seed", ("seed", *names), rows)


def _threshold_chart(curve: Sequence[ThresholdPoint], chosen: float) -> str:
    """Scores over the threshold of "no answer", with the chosen and the best threshold."""
    best = best_threshold(curve).threshold
    # Scores do not change below the first and above the last threshold.
    first, last = curve[0]._replace(threshold=chosen), curve[-1]._replace(threshold=chosen)
    points = [
        *([first] if chosen < curve[0].threshold else []),
        *curve,
        *([last] if chosen > curve[-1].threshold else []),
    ]
    return line_chart(
        [
            Line("F1", [(point.threshold, point.f1) for point in points]),
            Line("exact match", [(point.threshold, point.exact) for point in points]),
        ],
        Labels(
            "Threshold of “no answer”", "score of no answer − score of the best answer", "percent"
        ),
        markers=[
            Marker(f"chosen threshold {chosen:.3f}", chosen),
            Marker(f"best F1 at threshold {best:.3f}", best),
        ],
        note="Questions are answered unless this difference is above the threshold.",
    )
