"""A fine-tuning that several programs do: its data, and the run of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from benchmarks.speed.process import Found, run_script, script_command
from bert_tf.model_directory.classes import Classes
from bert_tf.tasks.classification.glue import GLUE_TASKS, read_glue
from bert_tf.tasks.classification.own_files import TableSettings, own_task, read_texts
from bert_tf.tasks.classification.texts import TextFile
from bert_tf.tasks.tagging.files import TaggedFile, read_tagged
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json

NER, TABLE = "ner", "table"

DataSet = Union[TextFile, TaggedFile]


@dataclasses.dataclass(frozen=True)
class FineTuningJob:
    """A training; a peer's process receives it as JSON.

    Attributes:
      task: NER, TABLE for a table of one's own, or a key of GLUE_TASKS.
      table: settings of a table, as in ``TableSettings``.
      model_dir: the weights, in Hugging Face's format.
      train_file, dev_file: the data.
      learning_rate, batch_size, epochs, seq_length: of the recipe.
      seed: of the head, the order and dropout.
      threads: cores to use.
    """

    task: str
    table: Mapping[str, Any]
    model_dir: str
    train_file: str
    dev_file: str
    learning_rate: float
    batch_size: int
    epochs: float
    seq_length: int
    seed: int
    threads: int

    @classmethod
    def from_json(cls, request: Mapping[str, Any]) -> FineTuningJob:
        """Restores a job from its fields."""
        return cls(**{field.name: request[field.name] for field in dataclasses.fields(cls)})


def read_sets(job: FineTuningJob) -> tuple[DataSet, DataSet]:
    """The training and the development set, with the same classes."""
    flags = ("train_file", "dev_file")
    paths = [Path(getattr(job, flag)) for flag in flags]
    if job.task == NER:
        first, second = (
            read_tagged(path, flag=flag, needs_labels=True) for path, flag in zip(paths, flags)
        )
        return first, second
    if job.task == TABLE:
        settings = TableSettings(**job.table)
        tables = [
            read_texts(path, settings, flag=flag, needs_labels=True)
            for path, flag in zip(paths, flags)
        ]
        names = () if settings.regression else tables[0].classes()
        classes = Classes.of_texts(settings.kind, names)
        task = own_task(tables[0].columns, settings, classes)
        return tables[0].with_numbers(task), tables[1].with_numbers(task)
    first_text, second_text = (
        read_glue(GLUE_TASKS[job.task], path, flag=flag, needs_labels=True)
        for path, flag in zip(paths, flags)
    )
    return first_text, second_text


def figure_of(job: FineTuningJob) -> str:
    """The result by which models of the task are compared, as our scripts name it."""
    if job.task == NER:
        return "eval_f1"
    if job.task in GLUE_TASKS:
        return f"eval_{GLUE_TASKS[job.task].metrics[0]}"
    dev = read_sets(job)[1]
    assert isinstance(dev, TextFile)
    return f"eval_{dev.task.metrics[0]}"


def train_ours(job: FineTuningJob, settings: Mapping[str, Any], output_dir: Path) -> Found:
    """A run of run_ner.py or run_classifier.py; ``settings`` are more of its flags."""
    script = "run_ner.py" if job.task == NER else "run_classifier.py"
    given: dict[str, Any] = {
        "init_checkpoint": job.model_dir,
        "train_file": job.train_file,
        "eval_file": job.dev_file,
        "do_train": True,
        "do_eval": True,
        "learning_rate": job.learning_rate,
        "train_batch_size": job.batch_size,
        "num_train_epochs": job.epochs,
        "max_seq_length": job.seq_length,
        "seed": job.seed,
        "num_threads": job.threads,
        "precision": "fp32",
        "keep_best": False,
        "output_dir": output_dir,
        **settings,
    }
    if job.task in GLUE_TASKS:
        given["task_name"] = GLUE_TASKS[job.task].name
    elif job.task == TABLE:
        given |= job.table
    output = output_dir.with_name(f"{output_dir.name}.txt")
    if run_script(script_command(script, given), output):
        raise UserError(f"{script} failed; see {output}.")
    results = read_json(output_dir / "eval_results.json", what="results")
    record = read_json(output_dir / "run.json", what="run record")
    return {
        "score": results[figure_of(job)],
        "sequences_per_second": record["training"]["sequences_per_second"],
    }
