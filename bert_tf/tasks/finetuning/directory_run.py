"""Fine-tuning on the files of a directory: training, evaluation, and prediction of a test set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.config.settings import OptimizationSettings
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.tasks.finetuning.run import (
    PredictionEvaluation,
    data_entries,
    directory_of_new_records,
    obtain_records,
    training_data,
)
from bert_tf.tasks.finetuning.settings import DirectorySettings
from bert_tf.train.arithmetic import Arithmetic
from bert_tf.train.evaluation import Results
from bert_tf.train.execute import execute
from bert_tf.train.job import JobData, RunModel
from bert_tf.train.prepare import prepare
from bert_tf.train.run import Run
from bert_tf.util.digest import CLASSES_DIGEST_KEY, EVAL_DIGEST_KEY, PREDICT_DIGEST_KEY
from bert_tf.util.errors import UserError


class Files(NamedTuple):
    """The contents of a run's files, as the task reads them; None for files that are not used.

    Each non-None entry has a ``path``.
    """

    train: Any
    dev: Any
    test: Any


@dataclasses.dataclass(frozen=True)
class FileTask:
    """How a task processes its files.

    Attributes:
      name: the name of the training data in the ledger.
      stage: makes a file's records; called with the file, ``training``, ``tokenizer_files``,
        ``max_seq_length`` and ``num_workers``.
      evaluation, prediction: called like :class:`PredictionEvaluation`, with the file first.
      predictions_name: the name of the file that predictions are written to.
      rate_factors: of variables of its own, as in :class:`OptimizationSettings`.
    """

    name: str
    stage: Callable[..., SequenceStage]
    evaluation: Callable[..., PredictionEvaluation]
    prediction: Callable[..., PredictionEvaluation]
    predictions_name: str
    rate_factors: tuple[tuple[str, float], ...] = ()


def read_files(
    settings: DirectorySettings,
    *,
    find: Callable[..., Any],
    read: Callable[..., Any],
    splits: tuple[str, str, str],
) -> Files:
    """Reads the files that a run uses.

    Args:
      settings: the settings of the run.
      find: finds a split in a directory; called with directory, split and ``flag``.
      read: reads a file, or what ``find`` has found; called with its path, ``flag`` and
        ``needs_labels``.
      splits: the names of the splits for training, evaluation and prediction.
    """
    uses = settings.run.do_train, settings.run.evaluation.do_eval, settings.do_predict
    given = {
        0: ("train_file", settings.train_file),
        1: ("eval_file", settings.eval_file),
        2: ("predict_file", settings.predict_file),
    }

    def read_one(number: int) -> Any:
        if not uses[number]:
            return None
        flag, path = given.get(number, ("", None))
        if path is None:
            flag = "data_dir"
            path = find(settings.data_dir, splits[number], flag=flag)
        return read(path, flag=flag, needs_labels=number < 2)

    return Files(*map(read_one, range(3)))


def check_trained_on(
    run: Run,
    name: str,
    *,
    same_head: Collection[str] = (),
    advice: Callable[[str], str] = lambda _: "",
) -> None:
    """Raises UserError if a run would use the head of another task, whose shape may be the same.

    Training may start from the weights of any task.

    Args:
      run: the run.
      name: this task's name in ledgers.
      same_head: the names of tasks whose head may predict this one.
      advice: returns further advice for the message, given the name of the other task.
    """
    source, record = run.start.checkpoint, run.record
    if source is None and run.settings.start.init_checkpoint and not run.settings.do_train:
        source = run.settings.start.init_checkpoint
        record = ModelDirectory.of(source).run_record
    trained_on = record.ledger.get("data", {}).get("task") if record else None
    allowed = {name} if run.settings.do_train else {name, *same_head}
    if trained_on is not None and trained_on not in allowed:
        raise UserError(
            f"{source} was trained on {trained_on}, not on {name}; {advice(trained_on)}choose "
            "another checkpoint or --output_dir."
        )


@dataclasses.dataclass(frozen=True)
class OpenedFiles:
    """A run on the files of a directory (see :class:`bert_tf.train.prepare.Opened`).

    Attributes:
      settings: what the user requested.
      model: the network.
      max_seq_length: length of the longest sequence.
      max_records: an upper bound on the number of training records; 1 without a training file.
      files: the files to read.
      task: how they are processed.
    """

    settings: DirectorySettings
    model: RunModel
    max_seq_length: int
    max_records: int
    files: Files
    task: FileTask

    is_padded = True

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""
        num_layers = self.model.config.num_hidden_layers
        found = self.settings.layers.applied_to(self.settings.optimization, num_layers)
        return dataclasses.replace(
            found, rate_factors=(*found.rate_factors, *self.task.rate_factors)
        )

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Makes the records of all files."""
        del arithmetic
        settings, model, files, task = self.settings, self.model, self.files, self.task
        directory = run.until_end.enter_context(
            directory_of_new_records(run, settings.features_dir)
        )
        train, dev, test = (
            None if file is None else self._records(run, directory, kind, file)
            for kind, file in zip(("train", "eval", "predict"), files)
        )
        few_lengths = bool(run.runtime.use_xla)
        common = {"config": model.config, "ranks": run.ranks, "few_lengths": few_lengths}
        evaluation = prediction = None
        if dev is not None:
            size = settings.run.evaluation.eval_batch_size
            evaluation = task.evaluation(files.dev, dev, batch_size=size, **common)
        if test is not None:
            size = settings.predict_batch_size
            prediction = task.prediction(files.test, test, batch_size=size, **common)
        entries = data_entries(settings, model, train=train, eval=dev, predict=test)
        return JobData(
            training_data(settings, model.config, train, max_seq_length=self.max_seq_length),
            evaluation,
            entries={
                "task": task.name,
                **entries,
                CLASSES_DIGEST_KEY: model.classes and model.classes.digest,
            },
            names={EVAL_DIGEST_KEY: "development set", PREDICT_DIGEST_KEY: "file to predict"},
            prediction=prediction,
        )

    def _records(self, run: Run, directory: Path, kind: str, file: Any) -> SequenceRecords:
        stage = self.task.stage(
            file,
            tokenizer_files=self.model.tokenizer_files,
            max_seq_length=self.max_seq_length,
            training=file is self.files.train,
            num_workers=self.settings.num_workers,
        )
        return obtain_records(self.settings, run, directory, stage, kind=kind)


def run_on_files(opened: OpenedFiles, run: Run) -> Results | None:
    """Makes the records, trains, evaluates and predicts; returns the evaluation's results."""
    results = execute(prepare(opened, run))
    test = opened.files.test
    if test is not None and run.keeps_files:
        path = run.settings.output_dir / opened.task.predictions_name
        run.message(f"the predictions of {test.path} are in {path}")
    return results
