"""What fine-tunings on the files of a directory share: train, evaluate, predict a test set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.checkpoint.model_files import model_files
from bert_tf.config.settings import DirectorySettings
from bert_tf.inference.model_directory import ModelParts
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.tasks.finetuning.run import (
    PredictionEvaluation,
    data_entries,
    directory_of_new_records,
    finetuning_job,
    obtain_records,
    predict_at_end,
)
from bert_tf.train.context import RunContext
from bert_tf.train.evaluation import Results
from bert_tf.train.job import Model
from bert_tf.train.run import run_job
from bert_tf.util.errors import UserError


class Files(NamedTuple):
    """The contents of a run's files, as the task reads them; None for those that it does not use.

    Each has a ``path``.
    """

    train: Any
    dev: Any
    test: Any


@dataclasses.dataclass(frozen=True)
class FileTask:
    """How a task treats its files.

    Attributes:
      name: of what it trains on, in the ledger.
      stage: makes a file's records; called with the file, ``training``, ``tokenizer_files``,
        ``max_seq_length`` and ``num_workers``.
      evaluation, prediction: called as :class:`PredictionEvaluation` is, with the file first.
      predictions_name: the file that a prediction writes.
    """

    name: str
    stage: Callable[..., SequenceStage]
    evaluation: Callable[..., PredictionEvaluation]
    prediction: Callable[..., PredictionEvaluation]
    predictions_name: str


def read_files(
    settings: DirectorySettings,
    *,
    find: Callable[..., Path],
    read: Callable[..., Any],
    splits: tuple[str, str, str],
) -> Files:
    """Reads the files that a run uses.

    Args:
      settings: those of the run.
      find: finds a split in a directory; called with both and ``flag``.
      read: reads a file; called with its path, ``flag`` and ``needs_labels``.
      splits: the names of those for training, evaluation and prediction.
    """
    uses = settings.run.do_train, settings.run.do_eval, settings.do_predict
    given = {1: ("eval_file", settings.eval_file), 2: ("predict_file", settings.predict_file)}

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
    context: RunContext, name: str, *, advice: Callable[[str], str] = lambda _: ""
) -> None:
    """Raises UserError if a run would use the head of another task, whose shape may be the same.

    Training may start from the weights of any task. ``name`` is that of this one in ledgers;
    ``advice`` says what else a user may do, from the name of the other.
    """
    source, record = context.start.checkpoint, context.record
    if source is None and context.settings.init_checkpoint and not context.settings.do_train:
        source = context.settings.init_checkpoint
        record = model_files(source).run_record
    trained_on = record.ledger.get("data", {}).get("task") if record else None
    if trained_on not in (None, name):
        raise UserError(
            f"{source} was trained on {trained_on}, not on {name}; {advice(trained_on)}choose "
            "another checkpoint or --output_dir."
        )


def run_on_files(
    settings: DirectorySettings,
    context: RunContext,
    parts: ModelParts,
    model: Model,
    files: Files,
    task: FileTask,
) -> Results | None:
    """Makes the records, trains, evaluates and predicts; returns the results of the evaluation."""
    with directory_of_new_records(context, settings.features_dir) as directory:

        def records(kind: str, file: Any, *, training: bool) -> SequenceRecords | None:
            if file is None:
                return None
            stage = task.stage(
                file,
                tokenizer_files=parts.tokenizer_files,
                max_seq_length=settings.max_seq_length,
                training=training,
                num_workers=settings.num_workers,
            )
            return obtain_records(settings, context, directory, stage, kind=kind)

        made = Files(
            records("train", files.train, training=True),
            records("eval", files.dev, training=False),
            records("predict", files.test, training=False),
        )
        return _run_on_records(settings, context, parts, model, files, made, task)


def _run_on_records(
    settings: DirectorySettings,
    context: RunContext,
    parts: ModelParts,
    model: Model,
    files: Files,
    records: Files,
    task: FileTask,
) -> Results | None:
    common = {"ranks": context.ranks, "length_buckets": settings.length_buckets}
    evaluation = files.dev and task.evaluation(
        files.dev, records.dev, parts.config, batch_size=settings.run.eval_batch_size, **common
    )
    job = finetuning_job(settings, context, model=model, train=records.train, evaluation=evaluation)
    entries = data_entries(
        settings, parts, train=records.train, eval=records.dev, predict=records.test
    )
    results = run_job(
        job,
        train_data={"task": task.name, **entries},
        data_names={"eval_sha256": "development set", "predict_sha256": "file to predict"},
    )
    if files.test is not None:
        prediction = task.prediction(
            files.test, records.test, parts.config, batch_size=settings.predict_batch_size, **common
        )
        predict_at_end(job, prediction)
        if context.keeps_files:
            path = settings.run.output_dir / task.predictions_name
            context.message(f"the predictions of {files.test.path} are in {path}")
    return results
