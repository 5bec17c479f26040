"""Answers to a file's questions and their scores, from the network's predictions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bert_tf.finetune.task import Predicted
from bert_tf.model_directory.record import require_record, write_record
from bert_tf.tasks.question_answering.answers import (
    Predictions,
    best_span_texts,
    decode_answers,
    write_predictions,
)
from bert_tf.tasks.question_answering.examples import SquadFile
from bert_tf.tasks.question_answering.metrics import (
    best_threshold,
    evaluate,
    official_best,
    threshold_curve,
)
from bert_tf.tasks.question_answering.settings import AnswerSettings, SquadSettings
from bert_tf.tasks.question_answering.windows import SpanCandidates
from bert_tf.train.evaluation import Results

FIRST_OF = "questions_in_file"  # only if not all of them are answered

_THRESHOLD = "null_score_diff_threshold"


def decode(predicted: Predicted, settings: SquadSettings) -> Predictions:
    """The answers, with the threshold that is best for them if the user wants it.

    Raises UserError as :func:`decode_answers`.
    """
    squad, tokenizer = predicted.file, predicted.tokenizer_files.load()
    candidates = SpanCandidates(**predicted.outputs)

    def answered(chosen: AnswerSettings) -> Predictions:
        return decode_answers(squad, tokenizer, settings.windows, candidates, chosen)

    found = answered(settings.answers)
    can_tune = settings.answers.version_2_with_negative and squad.is_scored
    if not (can_tune and settings.tune_threshold):
        return found
    curve = threshold_curve(squad, best_span_texts(squad, found), found.null_odds)
    best = best_threshold(curve).threshold
    return answered(dataclasses.replace(settings.answers, null_score_diff_threshold=best))


def score(
    squad: SquadFile, answers: Predictions, settings: SquadSettings, output_dir: Path
) -> Results:
    """Writes the answers and returns their scores; empty if the file has no answers.

    A threshold that was given or chosen is stored with the model.
    """
    version_2 = settings.answers.version_2_with_negative
    is_given = _THRESHOLD not in settings.run.command.defaulted
    if version_2 and (settings.tune_threshold or is_given):
        record = require_record(output_dir)
        kept = {**record.settings, _THRESHOLD: answers.threshold}
        if kept != record.settings:
            write_record(dataclasses.replace(record, settings=kept))
    write_predictions(output_dir, answers, version_2_with_negative=version_2)
    if not squad.is_scored:
        return {}
    # The scores are those of predictions.json, under the rules it was made with: the answer can be
    # "" even in a file without unanswerable questions.
    scores = evaluate(squad, answers.answers, version_2=version_2)
    if squad.first_of is not None:
        scores[FIRST_OF] = squad.first_of
    if not version_2:
        return scores
    # Every question's best span is known, so the best thresholds can be computed too.
    spans = best_span_texts(squad, answers)
    return {**scores, **official_best(squad, spans, answers.null_odds)}
