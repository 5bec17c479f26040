"""Fine-tuning a task: its model and files are opened, records made, a job executed and reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.config.declared import Settings, settings_of_model, with_settings_of_model
from bert_tf.config.settings import OptimizationSettings
from bert_tf.finetune.records import BatchOrder, directory_of_new_records, obtain_records
from bert_tf.finetune.settings import TRAIN, FinetuningSettings
from bert_tf.finetune.task import SequenceTask
from bert_tf.model_directory.complete import CompleteModel, complete_model
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.train.checks import check_model_files
from bert_tf.train.evaluation import Results
from bert_tf.train.execute import execute, prepare
from bert_tf.train.job import InitialWeights, Job, JobData, RunModel
from bert_tf.train.run import Run, begin
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.digest import CLASSES_DIGEST_KEY, DIGEST_KEY, VOCABULARY_DIGEST_KEY
from bert_tf.util.errors import UserError
from bert_tf.util.options import shown

if TYPE_CHECKING:
    from bert_tf.finetune.evaluation import FileEvaluation
    from bert_tf.finetune.repeats import Repeats
    from bert_tf.tasks.distillation.teacher import Teacher

Stored = TypeVar("Stored", bound=Settings)

OpenTask = Callable[[Any, Run], SequenceTask]


def run(open_task: OpenTask, settings: FinetuningSettings) -> Results | None:
    """Trains, evaluates and predicts as the settings say, once or for every seed and trial.

    Args:
      open_task: reads the files of a run that has begun.
      settings: the settings.

    Returns the results of the (last) evaluation, None without any. Raises UserError for bad input.
    """
    repeats = None
    if settings.seeds or settings.search:
        # Imported here so that a single run does not load it.
        from bert_tf.finetune.repeats import Repeats

        repeats = Repeats(settings)
    results = None
    for of_run in repeats.runs() if repeats else [settings]:
        with begin(of_run.run, of_run.runtime) as begun:
            opened = open_run(open_task, of_run, begun)
            job = prepare(opened, begun)
            results = execute(job)
            _conclude(opened.task, job, results, repeats)
    return results


def _conclude(
    task: SequenceTask, job: Job, results: Results | None, repeats: Repeats | None
) -> None:
    """Reports an executed job, and adds its results to those of repetitions."""
    begun = job.run
    if task.predicted in task.files and begun.keeps_files:
        for sentence in task.about_predictions(begun.settings.output_dir):
            begun.message(sentence)
    if results is None or not task.metrics:
        return
    if begun.ranks.is_chief:
        task.conclude(job, results)
    if repeats is not None:
        repeats.add(task, begun, results)


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run whose model and files are open (see :class:`bert_tf.train.execute.Opened`).

    Attributes:
      task: the task, with its files.
      model: the network.
      stages: make the records of the files, by kind.
    """

    task: SequenceTask
    model: RunModel
    stages: Mapping[str, SequenceStage]

    is_padded = True

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""
        settings, num_layers = self.task.settings, self.model.config.num_hidden_layers
        return settings.layers.applied_to(settings.optimization, num_layers, self.task.rate_factors)

    @property
    def max_records(self) -> int:
        """An upper bound on the number of training records; 1 without a training file."""
        return self.stages[TRAIN].max_records if TRAIN in self.stages else 1

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Makes the records of all files."""
        del arithmetic
        settings, model, task = self.task.settings, self.model, self.task
        directory = run.until_end.enter_context(
            directory_of_new_records(run, settings.features_dir)
        )
        records = {}
        for kind, stage in self.stages.items():
            records[kind] = obtain_records(settings, run, directory, stage, kind=kind)
        train, order = records.get(TRAIN), None
        if train is not None:
            length, by_length = settings.max_seq_length, settings.length_buckets
            seed, size = settings.run.seed, len(train)
            order = BatchOrder(train, model.config, length, seed, by_length, size)
        return JobData(
            order,
            self._evaluation(run, task.evaluated, records),
            entries={
                **({"task": task.name} if task.name else {}),
                DIGEST_KEY: train.digest if train else "none",
                **{name: _digest(records, name) for name in task.digests},
                VOCABULARY_DIGEST_KEY: model.vocabulary and model.vocabulary.digest,
                "tokenizer": model.tokenizer_files.kind,
                "lower_case": model.tokenizer_files.do_lower_case,
                "strip_accents": model.tokenizer_files.strips_accents,
                "length_buckets": settings.length_buckets,
                "train_records": len(train) if train else 0,
                **task.entries(records),
                CLASSES_DIGEST_KEY: task.classes and task.classes.digest,
            },
            names=task.digests,
            lists=task.lists,
            prediction=self._evaluation(run, task.predicted, records),
        )

    def _evaluation(
        self, run: Run, kind: str | None, records: Mapping[str, SequenceRecords]
    ) -> FileEvaluation | None:
        if kind is None or kind not in records:
            return None
        # Imported here so that a run that only trains does not load it.
        from bert_tf.finetune.evaluation import FileEvaluation

        settings = self.task.settings
        if kind == self.task.evaluated:
            batch_size = settings.run.evaluation.eval_batch_size
        else:
            batch_size = settings.predict_batch_size
        return FileEvaluation(
            self.task,
            kind,
            records[kind],
            self.model,
            ranks=run.ranks,
            batch_size=batch_size,
            few_lengths=bool(run.runtime.use_xla),
        )


def _digest(records: Mapping[str, SequenceRecords], name: str) -> str:
    of_file = records.get(name.removesuffix(f"_{DIGEST_KEY}"))
    return "none" if of_file is None else of_file.digest


def open_run(open_task: OpenTask, settings: FinetuningSettings, run: Run) -> Opened:
    """Reads a run's files and opens its network, and its teacher if it has one. Collective.

    Raises UserError for bad input, if something of the model is missing, if sequences do not fit
    the network, and if settings do not suit the teacher.
    """
    check_model_files(run, settings.bert_config_file, settings.distillation)
    task = open_task(settings, run)
    settings, teacher = task.settings, None
    if settings.distillation is not None and settings.run.do_train:
        # Imported here so that runs without a teacher do not load it.
        from bert_tf.tasks.distillation.teacher import open_teacher

        teacher = open_teacher(settings.distillation, run)
    complete = _open_model(settings, run, teacher)
    length = run.fit_length(settings.max_seq_length, complete.config)
    if teacher is not None:
        length = run.fit_length(length, teacher.config, whose="the teacher's")
    task = task.fitted(run, length)
    stages = {kind: task.stage(kind, complete.tokenizer_files) for kind in task.files}
    network = task.network(complete.config)
    model = RunModel(
        network,
        complete.vocabulary,
        tokenizer_files=complete.tokenizer_files,
        initial=InitialWeights(settings.run.start.init_checkpoint),
        ledger=task.ledger,
        classes=task.classes,
        kept=settings_of_model(task.settings),
        chosen_on=task.chosen_on,
    )
    if teacher is not None and settings.distillation is not None:
        from bert_tf.tasks.distillation.task import DistillationTask
        from bert_tf.tasks.distillation.teacher import with_teacher

        taught = DistillationTask(network, task.network(teacher.config), settings.distillation)
        model = with_teacher(model, teacher, taught, run)
    return Opened(task, model, stages)


def _open_model(settings: FinetuningSettings, run: Run, teacher: Teacher | None) -> CompleteModel:
    """The network's configuration and vocabulary, as the user gave them or stored with the weights.

    A student without weights gets its teacher's architecture with fewer layers. Raises UserError
    if something is missing.
    """
    weights = Path(settings.run.start.init_checkpoint or settings.run.output_dir)
    # A dry run does not create its output directory.
    is_new = not settings.run.start.init_checkpoint and not weights.is_dir()
    if teacher is not None and settings.distillation is not None and not first_weights(run):
        from bert_tf.tasks.distillation.teacher import student_config

        config = student_config(settings.distillation, teacher.config)
        weights, files = Path(teacher.path), dataclasses.replace(teacher.files, config=config)
    else:
        files = ModelDirectory() if is_new else ModelDirectory.of(weights)
    complete = complete_model(
        files,
        weights,
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    run.report(complete.notes, part="configuration")
    return complete


def first_weights(run: Run) -> str | None:
    """The weights that a run starts from, resumed or given; None for random ones."""
    return run.start.checkpoint or run.settings.start.init_checkpoint or None


def as_stored(
    settings: Stored,
    run: Run,
    *,
    without: type[Settings] | None = None,
    stores: Collection[str] = (),
) -> Stored:
    """The settings with those that are stored with the run's model where the user gave none.

    One model has one answer: a command that does not say otherwise reads texts and chooses answers
    as the run did that trained the model.

    Says which these are, and which of the user's differ from them. ``without`` is a group of
    settings that do not come from a model; those that the run ``stores`` in place of the model's
    may differ. Raises UserError for a stored value that is not valid, or contradicts what the user
    gave.
    """
    asked, defaulted = settings_of_model(settings), run.settings.command.defaulted
    if without is not None:
        asked = {n: value for n, value in asked.items() if n not in settings_of_model(without())}
    differing = {n: v for n, v in run.kept.items() if n in asked and asked[n] != v}
    taken = {name: value for name, value in differing.items() if name in defaulted}
    try:
        adopted = with_settings_of_model(settings, taken)
    except UserError as error:
        raise UserError(
            f"the model was trained with {_listed(taken)}, but this command contradicts it: {error}"
        ) from error
    if taken:
        run.message(f"as in the training of the model: {_listed(taken)}")
        run.decided.update(taken)
    if not run.settings.do_train:
        for name in sorted(differing.keys() - taken.keys() - {*stores}):
            run.warn(
                f"--{name}={shown(asked[name])}, but the model was trained with "
                f"{shown(differing[name])}; other commands and load_model predict with that",
                part="settings",
            )
    return adopted


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name}={shown(value)}" for name, value in sorted(values.items()))
