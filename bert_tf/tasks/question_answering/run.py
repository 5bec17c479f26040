"""Question answering: fine-tuning on SQuAD files, prediction, scores and the report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.config.declared import settings_of_model
from bert_tf.config.settings import OptimizationSettings
from bert_tf.tasks.finetuning.kept_settings import as_stored
from bert_tf.tasks.finetuning.run import (
    data_entries,
    directory_of_new_records,
    obtain_records,
    open_finetuning,
    run_repeatedly,
    training_data,
)
from bert_tf.tasks.question_answering.examples import SquadFile, read_squad
from bert_tf.tasks.question_answering.features import Questions, feature_stage, most_windows
from bert_tf.tasks.question_answering.scores import note_on_unit, scored_by
from bert_tf.tasks.question_answering.settings import SquadSettings
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.windows import WindowSettings, fitting_windows
from bert_tf.train.arithmetic import Arithmetic
from bert_tf.train.evaluation import Results
from bert_tf.train.execute import execute
from bert_tf.train.job import JobData, RunModel
from bert_tf.train.prepare import prepare
from bert_tf.train.run import Run, begin
from bert_tf.util.digest import PREDICT_DIGEST_KEY
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.tasks.finetuning.repeats import Repeats
    from bert_tf.tasks.question_answering.prediction import SpanEvaluation

_THRESHOLD = "null_score_diff_threshold"
UNUSABLE_NAME = "unusable_answers.json"


def run(settings: SquadSettings) -> Results | None:
    """Trains, predicts and scores as the settings say, once or once per seed.

    Returns the results of the prediction (with several seeds, those of the last), None without
    ``do_predict``. Raises UserError for bad input.
    """
    return run_repeatedly(settings, _run_once)


def _run_once(settings: SquadSettings, repeats: Repeats | None) -> Results | None:
    """Runs once, and adds the results to those of earlier repetitions."""
    with begin(settings.run, settings.runtime) as begun:
        opened = open_squad(settings, begun)
        job = prepare(opened, begun)
        results = execute(job)
        if results is not None and opened.predict is not None and opened.predict.is_scored:
            by_seed = {**(repeats.by_seed if repeats else {}), settings.run.seed: results}
            if begun.ranks.is_chief:
                from bert_tf.tasks.question_answering.report.run_report import report_run

                report_run(opened.settings, opened.train, opened.predict, job, by_seed)
            if repeats is not None:
                repeats.add(settings, begun, results, ("exact_match", "f1"), figure="f1")
        return results


@dataclasses.dataclass(frozen=True)
class OpenedSquad:
    """A run on SQuAD files (see :class:`bert_tf.train.prepare.Opened`).

    Attributes:
      settings: what the user requested, with lengths lowered where necessary.
      model: the network.
      train, predict: the question files that the run uses.
    """

    settings: SquadSettings
    model: RunModel
    train: SquadFile | None
    predict: SquadFile | None

    is_padded = True

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""
        num_layers = self.model.config.num_hidden_layers
        return self.settings.layers.applied_to(self.settings.optimization, num_layers)

    @property
    def windows(self) -> WindowSettings:
        """The lengths for splitting paragraphs into windows."""
        return _windows(self.settings, self.settings.max_seq_length)

    @property
    def max_seq_length(self) -> int:
        """The length of the longest sequence."""
        return self.settings.max_seq_length

    @property
    def max_records(self) -> int:
        """An upper bound on the number of training windows; 1 without training questions."""
        return most_windows(self.train, self.windows) if self.train else 1

    def first(self, count: int) -> OpenedSquad:
        """The same run on the first ``count`` questions of each file."""
        train, predict = (squad and squad.first(count) for squad in (self.train, self.predict))
        return dataclasses.replace(self, train=train, predict=predict)

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Makes the records of the questions."""
        del arithmetic
        settings, model = self.settings, self.model
        directory = run.until_end.enter_context(
            directory_of_new_records(run, settings.features_dir)
        )
        train = self.train and self._questions(run, directory, self.train)
        predict = self.predict and self._questions(run, directory, self.predict)
        unusable = train.squad.unusable if train else ()
        train_records = train.features if train else None
        predict_records = predict.features if predict else None
        return JobData(
            training_data(
                settings, model.config, train_records, max_seq_length=self.max_seq_length
            ),
            self._evaluation(run, predict) if predict else None,
            entries={
                **data_entries(settings, model, train=train_records, predict=predict_records),
                "train_questions": len(train.squad.examples) if train else 0,
                "predict_records": len(predict.features) if predict else 0,
            },
            names={PREDICT_DIGEST_KEY: "questions"},
            lists={UNUSABLE_NAME: unusable} if unusable else {},
        )

    def _questions(self, run: Run, new_records: Path, squad: SquadFile) -> Questions:
        """The questions of a file with their records, written unless they exist already."""
        settings, training = self.settings, squad is self.train
        stage = feature_stage(
            squad,
            tokenizer_files=self.model.tokenizer_files,
            windows=self.windows,
            training=training,
            num_workers=settings.num_workers,
        )
        kind = "train" if training else "predict"
        features = obtain_records(settings, run, new_records, stage, kind=kind)
        if training and squad.unusable and not settings.run.dry_run:
            listed = settings.run.output_dir / UNUSABLE_NAME
            run.message(f"{squad.path.name}: the skipped questions are listed in {listed}")
        return Questions(squad, features, self.windows)

    def _evaluation(self, run: Run, questions: Questions) -> SpanEvaluation:
        from bert_tf.tasks.question_answering.prediction import SpanEvaluation

        settings = self.settings
        return SpanEvaluation(
            questions,
            self.model.tokenizer_files.load(),
            self.model.config,
            settings=settings.answers,
            tunes=settings.tune_threshold,
            is_given=_THRESHOLD not in settings.run.command.defaulted,
            ranks=run.ranks,
            batch_size=settings.run.evaluation.eval_batch_size,
            few_lengths=bool(run.runtime.use_xla),
        )


def open_squad(settings: SquadSettings, run: Run) -> OpenedSquad:
    """Opens the network and the files of a run. Collective. Raises UserError for bad input."""
    settings = as_stored(settings, run, stores=[_THRESHOLD])
    model, length = open_finetuning(
        settings, run, lambda config: SpanTask(config, num_candidates=settings.answers.n_best_size)
    )
    windows = _fit_windows(settings, run, length)
    train = _read(settings, training=True) if settings.run.do_train else None
    predict = _read_predict_file(settings, run) if settings.run.evaluation.do_eval else None
    windows.validate()
    compares = settings.run.evaluation.eval_every_steps is not None
    if compares and predict is not None and not predict.is_scored:
        raise UserError(
            f"--eval_every_steps compares scores, but {predict.path} has no answers; drop the flag "
            "or give a file with answers."
        )
    used = dataclasses.replace(settings, **dataclasses.asdict(windows))
    model = dataclasses.replace(model, kept=settings_of_model(used))
    return OpenedSquad(used, model, train, predict)


def _windows(settings: SquadSettings, max_seq_length: int) -> WindowSettings:
    return WindowSettings(max_seq_length, settings.doc_stride, settings.max_query_length)


def _fit_windows(settings: SquadSettings, run: Run, max_seq_length: int) -> WindowSettings:
    """The window lengths, with default stride and question length lowered if they do not fit."""
    given = _windows(settings, max_seq_length)
    defaulted = settings.run.command.defaulted
    if "max_seq_length" not in defaulted and given.has_room:
        return given
    fitting, lowered = fitting_windows(max_seq_length), {}
    for name in sorted(defaulted & {"doc_stride", "max_query_length"}):
        value = getattr(fitting, name)
        if value < getattr(settings, name):
            reason = f"for sequences of {max_seq_length} tokens"
            lowered[name] = run.decide(name, value, reason)
    return dataclasses.replace(given, **lowered)


def _read(settings: SquadSettings, *, training: bool) -> SquadFile:
    flag = "train_file" if training else "predict_file"
    return read_squad(
        getattr(settings, flag),
        flag=flag,
        version_2_with_negative=settings.answers.version_2_with_negative,
        needs_answers=training,
    )


def _read_predict_file(settings: SquadSettings, run: Run) -> SquadFile:
    """The questions to answer."""
    squad = _read(settings, training=False)
    if settings.max_predict_questions is not None:
        squad = squad.first(settings.max_predict_questions)
    if squad.is_scored and not settings.answers.version_2_with_negative:
        squad.require_answers()
    if squad.first_of is not None:
        run.message(f"{squad} are answered; predictions and scores cover only these")
    squad = scored_by(squad, settings.score_by)
    if note := note_on_unit(squad):
        run.message(note)
    return squad
