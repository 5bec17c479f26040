"""The data for measuring padding: real files as arrays, with their networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable

from benchmarks.sequences import Sequences, squad_windows
from bert_tf.model.config import BertConfig
from bert_tf.model.task import Task
from bert_tf.tasks.classification import features as glue_features
from bert_tf.tasks.classification.glue import DEV, GLUE_TASKS, TRAIN, find_split, read_glue
from bert_tf.tasks.classification.task import ClassificationLoss, ClassificationTask
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.files import PathLike


@dataclasses.dataclass(frozen=True)
class Case:
    """A fine-tuning with real data.

    Attributes:
      name: for tables.
      max_seq_length: sequence length of the padded form.
      batch_size: sequences per update and per prediction batch.
      train, dev: training and development sequences.
      task: maps the network's configuration to the task to train and predict.
    """

    name: str
    max_seq_length: int
    batch_size: int
    train: Sequences
    dev: Sequences
    task: Callable[[BertConfig], Task]


def squad_case(
    train_file: PathLike, dev_file: PathLike, *, max_seq_length: int, batch_size: int, **how: Any
) -> Case:
    """SQuAD; ``how`` contains further arguments of :func:`squad_windows`."""
    how["max_seq_length"] = max_seq_length
    train = squad_windows(train_file, flag="squad_train_file", training=True, **how)
    dev = squad_windows(dev_file, flag="squad_predict_file", training=False, **how)
    return Case("squad", max_seq_length, batch_size, train, dev, SpanTask)


def glue_case(
    name: str,
    glue_dir: Path,
    *,
    tokenizer_files: TokenizerFiles,
    work_dir: Path,
    max_seq_length: int,
    batch_size: int,
) -> Case:
    """A GLUE task, with the records of run_classifier.py, which are kept in ``work_dir``."""
    glue = GLUE_TASKS[name]

    def read(split: str) -> Sequences:
        path = find_split(glue, glue_dir / glue.name, split, flag="glue_dir")
        file = read_glue(glue, path, flag="glue_dir", needs_labels=True)
        records = glue_features.feature_stage(
            file,
            tokenizer_files=tokenizer_files,
            max_seq_length=max_seq_length,
            training=split == TRAIN,
        ).build(work_dir / f"{name}-{split}-{max_seq_length}")
        return Sequences.read(records)

    def task(config: BertConfig) -> Task:
        return ClassificationTask(
            config, glue.classes.num_outputs, loss=ClassificationLoss(glue.classes.kind)
        )

    return Case(name, max_seq_length, batch_size, read(TRAIN), read(DEV), task)
