"""A trained model of any task: which task it is for, and what its outputs mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bert_tf.checkpoint import names
from bert_tf.checkpoint.formats import Source, open_source
from bert_tf.model.config import CONFIG_NAME
from bert_tf.model_directory.classes import (
    CHOICE,
    REGRESSION,
    SINGLE_LABEL,
    TEXT_KINDS,
    WORD_LABELS,
    Classes,
)
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.model_directory.directory import HUGGINGFACE_CONFIG_NAME, require_checkpoint
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

_SAVED_MODEL = "saved_model.pb"


class Task(NamedTuple):
    """Where to find what trained models of a task do; its modules are imported when needed.

    Attributes:
      predictor: ``module:name`` of what keeps its networks in memory: called with a model, the
        classes of its head if it has some, and settings.
      signatures: the name of the class of its exports, in ``serving.signatures``.
      head: the head of its models, in ``checkpoint.names.HEADS``; None for any.
      kinds: the kinds of classes of a head that several tasks have.
      script: the script that trains its models; None if several do.
    """

    predictor: str
    signatures: str
    head: str | None
    kinds: tuple[str, ...] = ()
    script: str | None = None


CLASSIFICATION, TAGGING, MULTIPLE_CHOICE = "classification", "tagging", "multiple_choice"
_TASKS = "bert_tf.tasks"
# A head belongs to the first task that has it.
TASKS: Mapping[str, Task] = {
    CLASSIFICATION: Task(
        f"{_TASKS}.classification.classifier:TextClassifier",
        "ClassifierSignatures",
        names.CLASSES,
        TEXT_KINDS,
        "run_classifier.py",
    ),
    TAGGING: Task(
        f"{_TASKS}.tagging.tagger:Tagger",
        "TaggerSignatures",
        names.CLASSES,
        (WORD_LABELS,),
        "run_ner.py",
    ),
    MULTIPLE_CHOICE: Task(
        f"{_TASKS}.multiple_choice.chooser:Chooser",
        "ChooserSignatures",
        names.CLASSES,
        (CHOICE,),
        "run_multiple_choice.py",
    ),
    "question_answering": Task(
        f"{_TASKS}.question_answering.answers:Answerer",
        "SpanSignatures",
        names.SQUAD,
        script="run_squad.py",
    ),
    "masked_words": Task(
        f"{_TASKS}.pretraining.mask_filler:mask_filler", "MaskSignatures", names.MASKED_LM
    ),
    "vectors": Task(f"{_TASKS}.vectors.encoder:TextEncoder", "VectorSignatures", None),
}


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A complete model for a task.

    Attributes:
      task: one of ``TASKS``.
      model: its architecture, tokenizer and weights, and the settings of its training.
      classes: what the outputs of a head of classes mean; None for other tasks.
    """

    task: str
    model: CompleteModel
    classes: Classes | None = None

    @property
    def required_classes(self) -> Classes:
        """The classes, which every model for classification or tagging has."""
        assert self.classes is not None
        return self.classes


def open_trained(path: PathLike, task: str | None = None) -> TrainedModel:
    """The model in a directory, or of the weights at a path; see :func:`trained_model`."""
    require_checkpoint(path, flag="model_dir")
    is_directory = Path(path).is_dir()
    directory = Path(path) if is_directory else Path(path).parent
    if not any((directory / name).is_file() for name in (CONFIG_NAME, HUGGINGFACE_CONFIG_NAME)):
        if (directory / _SAVED_MODEL).is_file():
            raise UserError(
                f"{path} is an exported SavedModel, for TensorFlow's tf.saved_model.load; "
                "load_model takes the model directory that it was exported from."
            )
        raise UserError(
            f"{path} has no {CONFIG_NAME} or {HUGGINGFACE_CONFIG_NAME}; load_model takes a model "
            "directory with weights, configuration and vocabulary."
        )
    model = find_model(path) if is_directory else find_model(init_checkpoint=path)
    return trained_model(model, task)


def trained_model(model: CompleteModel, task: str | None = None) -> TrainedModel:
    """A model and its task: the given one, or that of its head; vectors for a model without one.

    Raises UserError for an unknown task, if several tasks have such a head and no file next to the
    weights tells which it is, or if the labels of words are unknown.
    """
    source = open_source(model.checkpoint)
    task = task or _task_of(source)
    if task not in TASKS:
        raise UserError(f"--task={task} is not one of {', '.join(TASKS)}.")
    classes = {
        CLASSIFICATION: _text_classes,
        TAGGING: _word_labels,
        MULTIPLE_CHOICE: _choices,
    }.get(task)
    return TrainedModel(task, model, classes and classes(source))


def _text_classes(source: Source) -> Classes:
    """The classes of texts that are stored with weights; numbers name them if nothing does."""
    bias = source.shapes.get(f"{names.CLASSES}output_bias")
    if bias is None:
        raise UserError(
            f"{source.path} has no classification head; train one with run_classifier.py "
            f"--do_train --init_checkpoint={source.path}."
        )
    if (stored := source.files.classes_of(TEXT_KINDS)) is not None:
        return stored
    [outputs] = bias
    numbers = tuple(map(str, range(outputs)))
    return Classes.of_texts(SINGLE_LABEL, numbers) if outputs > 1 else Classes(REGRESSION)


def _choices(source: Source) -> Classes:
    """That the outputs of a head are scores of choices."""
    if source.files.classes_of((CHOICE,)) is None:
        raise UserError(
            f"{source.path} has no multiple-choice head; train one with run_multiple_choice.py "
            f"--do_train --init_checkpoint={source.path}."
        )
    return Classes(CHOICE)


def _word_labels(source: Source) -> Classes:
    """The labels of words that are stored with weights."""
    classes = source.files.classes_of((WORD_LABELS,))
    if classes is None:
        raise UserError(
            f"{source.path} has no {MODEL_RECORD_NAME} with labels of words next to it, or no "
            "head of labels; give a model that run_ner.py trained, or restore the file."
        )
    return classes


def _task_of(source: Source) -> str:
    heads, classes = names.heads_of(source.stored), source.files.classes
    if names.CLASSES in heads:
        if classes is None:
            raise UserError(
                f"{source.path} has a head of classes, but no {MODEL_RECORD_NAME} next to it tells "
                f"whether of words or of texts: give --task={CLASSIFICATION}, or restore the file."
            )
        return next(name for name, task in TASKS.items() if classes.kind in task.kinds)
    return next(name for name, task in TASKS.items() if task.head is None or task.head in heads)
