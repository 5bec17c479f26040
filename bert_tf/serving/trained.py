"""A trained model of any task: which task it is for, and what its outputs mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.checkpoint import names
from bert_tf.checkpoint.formats import Source, open_source
from bert_tf.model.config import CONFIG_NAME
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.model_directory.directory import (
    HUGGINGFACE_CONFIG_NAME,
    ModelDirectory,
    require_checkpoint,
)
from bert_tf.model_directory.labels import LABELS_NAME, TEXT_CLASSES_NAME, Labels
from bert_tf.model_directory.text_classes import REGRESSION, SINGLE_LABEL, TextClasses
from bert_tf.tasks.classification.long_texts import LongTexts
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

CLASSIFICATION, TAGGING = "classification", "tagging"
QUESTION_ANSWERING = "question_answering"
MASKED_WORDS, VECTORS = "masked_words", "vectors"
TASKS = (CLASSIFICATION, TAGGING, QUESTION_ANSWERING, MASKED_WORDS, VECTORS)

# Values of a run's flags: which types they have.
_KEPT: Mapping[str, type] = {"max_seq_length": int, "long_texts": str, "doc_stride": int}
_SAVED_MODEL = "saved_model.pb"


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A complete model for a task.

    Attributes:
      task: one of ``TASKS``.
      model: its architecture, tokenizer and weights.
      labels: the labels of words, by class number; () unless the task is tagging.
      text_classes: what the outputs of a classification head mean; None for other tasks.
      kept: flags that the training run in the directory was given, by name.
    """

    task: str
    model: CompleteModel
    labels: Labels = ()
    text_classes: TextClasses | None = None
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def max_seq_length(self) -> int | None:
        """The length that its run was given; None if that is unknown."""
        return self.kept.get("max_seq_length")

    @property
    def long_texts(self) -> LongTexts:
        """What its run read of texts that were too long, the head if that is unknown."""
        names = [field.name for field in dataclasses.fields(LongTexts)]
        return LongTexts(**{name: self.kept[name] for name in names if name in self.kept})


def open_trained(path: PathLike, task: str | None = None) -> TrainedModel:
    """The model in a directory, or of the weights at a path; see :func:`trained_model`."""
    require_checkpoint(path, flag="model_dir")
    is_directory = Path(path).is_dir()
    if ModelDirectory.of(path).config is None:
        if (Path(path) / _SAVED_MODEL).is_file():
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
    record = source.files.run_record
    flags = record.content.get("flags") if record else None
    flags = flags if isinstance(flags, dict) else {}
    return TrainedModel(
        task,
        model,
        labels=_labels(source) if task == TAGGING else (),
        text_classes=_text_classes(source) if task == CLASSIFICATION else None,
        kept={n: flags[n] for n, kind in _KEPT.items() if isinstance(flags.get(n), kind)},
    )


def _task_of(source: Source) -> str:
    heads = names.heads_of(source.stored)
    if names.CLASSES in heads:
        if source.labels is not None:
            return TAGGING
        if source.files.text_classes is not None:
            return CLASSIFICATION
        raise UserError(
            f"{source.path} has a head of classes, but no {LABELS_NAME} (of words) or "
            f"{TEXT_CLASSES_NAME} (of texts) next to it tells which: give --task={CLASSIFICATION}, "
            "or restore the file."
        )
    if names.SQUAD in heads:
        return QUESTION_ANSWERING
    return MASKED_WORDS if names.MASKED_LM in heads else VECTORS


def _labels(source: Source) -> Labels:
    if source.labels is None:
        raise UserError(
            f"{source.path} has no {LABELS_NAME} next to it, or no head of labels; give a model "
            "that run_ner.py trained, or restore the file."
        )
    return source.labels


def _text_classes(source: Source) -> TextClasses:
    """The classes stored with the weights; numbers name them if nothing does."""
    bias = source.shapes.get(f"{names.CLASSES}output_bias")
    if bias is None:
        raise UserError(
            f"{source.path} has no classification head; train one with run_classifier.py "
            f"--do_train --init_checkpoint={source.path}."
        )
    [outputs] = bias
    stored = source.files.text_classes
    if stored is not None and (len(stored.labels) or 1) != outputs:
        raise UserError(
            f"{source.path}: {len(stored.labels)} classes are stored with it, but its head has "
            f"{outputs} outputs; restore {TEXT_CLASSES_NAME} or config.json there."
        )
    if stored is not None:
        return stored
    numbers = tuple(map(str, range(outputs)))
    return TextClasses(SINGLE_LABEL, numbers) if outputs > 1 else TextClasses(REGRESSION)
