"""Question answering: fine-tuning on SQuAD files, prediction, scores and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_tf.finetune import run as finetuning
from bert_tf.finetune.run import as_stored
from bert_tf.finetune.settings import PREDICT, TRAIN
from bert_tf.finetune.task import Predicted, SequenceTask
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import require_record, write_record
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.tasks.question_answering.examples import SquadFile, read_squad
from bert_tf.tasks.question_answering.metrics import (
    ThresholdPoint,
    best_threshold,
    evaluate,
    note_on_unit,
    official_best,
    question_scores,
    scored_by,
    threshold_curve,
)
from bert_tf.tasks.question_answering.settings import AnswerSettings, SquadSettings
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.windows import (
    SpanCandidates,
    WindowSettings,
    feature_stage,
    fitting_windows,
    note_on_unusable,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.evaluation import Results
from bert_tf.train.job import Job
from bert_tf.train.run import Run
from bert_tf.util.digest import PREDICT_DIGEST_KEY
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.tasks.question_answering.answers import Predictions

UNUSABLE_NAME = "unusable_answers.json"
FIRST_OF = "questions_in_file"  # only if not all of them are answered

_THRESHOLD = "null_score_diff_threshold"


def run(settings: SquadSettings) -> Results | None:
    """Trains, predicts and scores as the settings say (see :func:`bert_tf.finetune.run.run`)."""
    return finetuning.run(QuestionAnswering.open, settings)


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(SequenceTask):
    """Answers that are extracted from the texts of SQuAD files.

    The file to answer is scored if it has answers.
    """

    settings: SquadSettings
    files: Mapping[str, SquadFile]

    evaluated: ClassVar[str] = PREDICT
    predicted: ClassVar[None] = None
    digests: ClassVar[Mapping[str, str]] = {PREDICT_DIGEST_KEY: "questions"}
    unit: ClassVar[str] = "windows"
    digits: ClassVar[int] = 2
    metric: ClassVar[str] = "f1"

    @classmethod
    def open(cls, settings: SquadSettings, run: Run) -> QuestionAnswering:
        """Reads the files of a run. Raises UserError for bad input."""
        settings = as_stored(settings, run, stores=[_THRESHOLD])
        files = {}
        if settings.run.do_train:
            files[TRAIN] = train = _read(settings, TRAIN)
            if train.unusable:
                run.message(note_on_unusable(train))
                if not settings.run.dry_run:
                    listed = settings.run.output_dir / UNUSABLE_NAME
                    run.message(f"{train.path.name}: the skipped questions are listed in {listed}")
        if settings.run.evaluation.do_eval:
            files[PREDICT] = _read_predict_file(settings, run)
        return cls(settings, files)

    @property
    def metrics(self) -> Sequence[str]:
        """SQuAD's, if there are answers to compare with."""
        is_scored = PREDICT in self.files and self.files[PREDICT].is_scored
        return ("exact_match", "f1") if is_scored else ()

    @property
    def lists(self) -> Mapping[str, Sequence[Any]]:
        """The training questions that are left out."""
        unusable = self.files[TRAIN].unusable if TRAIN in self.files else ()
        return {UNUSABLE_NAME: unusable} if unusable else {}

    def entries(self, records: Mapping[str, SequenceRecords]) -> Mapping[str, Any]:
        """The numbers of questions to train and of windows to answer."""
        return {
            "train_questions": len(self.files[TRAIN].examples) if TRAIN in self.files else 0,
            "predict_records": len(records[PREDICT]) if PREDICT in records else 0,
        }

    def fitted(self, run: Run, max_seq_length: int) -> QuestionAnswering:
        """With default stride and question length lowered, too, where necessary."""
        settings, defaulted = self.settings, run.settings.command.defaulted
        lengths = {**dataclasses.asdict(settings.windows), "max_seq_length": max_seq_length}
        if "max_seq_length" in defaulted or not WindowSettings(**lengths).has_room:
            fitting = fitting_windows(max_seq_length)
            for name in sorted(defaulted & {"doc_stride", "max_query_length"}):
                value = getattr(fitting, name)
                if value < getattr(settings, name):
                    reason = f"for sequences of {max_seq_length} tokens"
                    lengths[name] = run.decide(name, value, reason)
        WindowSettings(**lengths).validate()
        return QuestionAnswering(dataclasses.replace(settings, **lengths), self.files)

    def network(self, config: BertConfig) -> SpanTask:
        """A network with a span head."""
        return SpanTask(config, num_candidates=self.settings.answers.n_best_size)

    def stage(self, kind: str, tokenizer_files: TokenizerFiles) -> SequenceStage:
        """Only training needs the positions of answers."""
        return feature_stage(
            self.files[kind],
            tokenizer_files=tokenizer_files,
            windows=self.settings.windows,
            training=kind == TRAIN,
            num_workers=self.settings.num_workers,
        )

    def decode(self, predicted: Predicted) -> Predictions:
        """The answers, with the threshold that is best for them if the user wants it.

        Raises UserError as :func:`decode_answers`.
        """
        # Imported here so that a run that only trains does not load it.
        from bert_tf.tasks.question_answering.answers import decode_answers

        settings, squad = self.settings, predicted.file
        tokenizer = predicted.tokenizer_files.load()
        candidates = SpanCandidates(**predicted.outputs)

        def answered(chosen: AnswerSettings) -> Predictions:
            return decode_answers(squad, tokenizer, settings.windows, candidates, chosen)

        as_given = answered(settings.answers)
        if not (self._is_version_2 and squad.is_scored and settings.tune_threshold):
            return as_given
        best = best_threshold(_curve(squad, as_given)).threshold
        return answered(dataclasses.replace(settings.answers, null_score_diff_threshold=best))

    def score(self, predicted: Predicted, answers: Predictions, output_dir: Path) -> Results:
        """Writes the answers and returns their scores; empty if the file has no answers.

        A threshold that was given or chosen is stored with the model.
        """
        from bert_tf.tasks.question_answering.answers import write_predictions

        settings, squad, version_2 = self.settings, predicted.file, self._is_version_2
        is_given = _THRESHOLD not in settings.run.command.defaulted
        if version_2 and (settings.tune_threshold or is_given):
            record = require_record(output_dir)
            kept = {**record.settings, _THRESHOLD: answers.threshold}
            if kept != record.settings:
                write_record(dataclasses.replace(record, settings=kept))
        write_predictions(output_dir, answers, version_2_with_negative=version_2)
        if not squad.is_scored:
            return {}
        # The scores are those of predictions.json, under the rules it was made with: the answer can
        # be "" even in a file without unanswerable questions.
        scores = evaluate(squad, answers.answers, version_2=version_2)
        if squad.first_of is not None:
            scores[FIRST_OF] = squad.first_of
        if not version_2:
            return scores
        # Every question's best span is known, so the best thresholds can be computed too.
        return {**scores, **official_best(squad, answers.span_texts(squad), answers.null_odds)}

    def conclude(self, job: Job, results: Results) -> None:
        """Writes the report, and logs its main result."""
        from bert_tf.finetune.evaluation import FileEvaluation
        from bert_tf.tasks.question_answering.report import report_of

        evaluation, squad = job.data.evaluation, self.files[PREDICT]
        assert isinstance(evaluation, FileEvaluation)
        answers: Predictions = evaluation.answers
        curve = _curve(squad, answers) if self._is_version_2 else []
        scores = question_scores(squad, answers.answers, version_2=self._is_version_2)
        report_of(squad, scores, answers, results, curve).write(job.settings.output_dir)
        super().conclude(job, results)
        if curve:
            best = best_threshold(curve)
            job.run.message(
                f"--null_score_diff_threshold={best.threshold:.4f} would be best for these "
                f"questions: exact_match {best.exact:.4f}  f1 {best.f1:.4f}"
            )

    @property
    def _is_version_2(self) -> bool:
        return self.settings.answers.version_2_with_negative


def _curve(squad: SquadFile, answers: Predictions) -> list[ThresholdPoint]:
    return threshold_curve(squad, answers.span_texts(squad), answers.null_odds)


def _read(settings: SquadSettings, kind: str) -> SquadFile:
    flag = f"{kind}_file"
    return read_squad(
        getattr(settings, flag),
        flag=flag,
        version_2_with_negative=settings.answers.version_2_with_negative,
        needs_answers=kind == TRAIN,
    )


def _read_predict_file(settings: SquadSettings, run: Run) -> SquadFile:
    """The questions to answer."""
    squad = _read(settings, PREDICT)
    if settings.max_predict_questions is not None:
        squad = squad.first(settings.max_predict_questions)
    if squad.is_scored and not settings.answers.version_2_with_negative:
        squad.require_answers()
    if not squad.is_scored and settings.run.evaluation.eval_every_steps is not None:
        raise UserError(
            f"--eval_every_steps compares scores, but {squad.path} has no answers; drop the flag "
            "or give a file with answers."
        )
    if squad.first_of is not None:
        run.message(f"{squad} are answered; predictions and scores cover only these")
    squad = scored_by(squad, settings.score_by)
    if note := note_on_unit(squad):
        run.message(note)
    return squad
