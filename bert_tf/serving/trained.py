"""A trained model of any task: which task it is for, and what its outputs mean."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bert_tf.checkpoint import names
from bert_tf.checkpoint.formats import Source, open_source
from bert_tf.config.declared import with_settings_of_model
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
from bert_tf.serving.export import ExportSettings
from bert_tf.tasks.classification.texts import LongTexts
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

if TYPE_CHECKING:
    from bert_tf.inference.export import Exportable

_SAVED_MODEL = "saved_model.pb"


class Task(abc.ABC):
    """What is special to the trained models of a task; its modules are imported when needed.

    Attributes:
      predictor: what keeps its networks in memory: called with a model, the classes of its head if
        it has some, and settings.
      script: the script that trains its models; None if several do.
      head: that of its models, in ``checkpoint.names.HEADS``; None for any.
      kinds: the kinds of classes of a head that several tasks have.
    """

    predictor: ClassVar[str]
    script: ClassVar[str | None] = None
    head: ClassVar[str | None]
    kinds: ClassVar[tuple[str, ...]] = ()

    def classes(self, source: Source) -> Classes | None:
        """What the outputs of a head of classes mean; raises UserError if that is unknown."""
        del source
        return None

    @abc.abstractmethod
    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        """See :func:`exportable_of`."""


class _Classification(Task):
    predictor = "bert_tf.tasks.classification.classifier:TextClassifier"
    script = "run_classifier.py"
    head = names.CLASSES
    kinds = TEXT_KINDS

    def classes(self, source: Source) -> Classes:
        """The classes stored with the weights; numbers name them if nothing does."""
        bias = source.shapes.get(f"{names.CLASSES}output_bias")
        if bias is None:
            raise UserError(
                f"{source.path} has no classification head; train one with {self.script} "
                f"--do_train --init_checkpoint={source.path}."
            )
        if (stored := source.files.classes_of(self.kinds)) is not None:
            return stored
        [outputs] = bias
        numbers = tuple(map(str, range(outputs)))
        return Classes.of_texts(SINGLE_LABEL, numbers) if outputs > 1 else Classes(REGRESSION)

    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        from bert_tf.tasks.classification.export import ExportableClassifier

        return ExportableClassifier(
            trained.model,
            trained.required_classes,
            max_seq_length=_trained_length(trained, settings),
            long_texts=with_settings_of_model(LongTexts(), trained.model.kept),
        )


class _Tagging(Task):
    predictor = "bert_tf.tasks.tagging.tagger:Tagger"
    script = "run_ner.py"
    head = names.CLASSES
    kinds = (WORD_LABELS,)

    def classes(self, source: Source) -> Classes:
        """The labels of words stored with the weights."""
        classes = source.files.classes_of(self.kinds)
        if classes is None:
            raise UserError(
                f"{source.path} has no {MODEL_RECORD_NAME} with labels of words next to it, or no "
                f"head of labels; give a model that {self.script} trained, or restore the file."
            )
        return classes

    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        from bert_tf.tasks.tagging.export import ExportableTagger

        length = _trained_length(trained, settings)
        return ExportableTagger(trained.model, trained.required_classes, max_seq_length=length)


class _MultipleChoice(Task):
    predictor = "bert_tf.tasks.multiple_choice.chooser:Chooser"
    script = "run_multiple_choice.py"
    head = names.CLASSES
    kinds = (CHOICE,)

    def classes(self, source: Source) -> Classes:
        """That its outputs are scores of choices."""
        if source.files.classes_of(self.kinds) is None:
            raise UserError(
                f"{source.path} has no multiple-choice head; train one with {self.script} "
                f"--do_train --init_checkpoint={source.path}."
            )
        return Classes(CHOICE)

    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        from bert_tf.tasks.multiple_choice.export import ExportableChooser

        length = _trained_length(trained, settings)
        return ExportableChooser(trained.model, max_seq_length=length)


class _QuestionAnswering(Task):
    predictor = "bert_tf.tasks.question_answering.answerer:Answerer"
    script = "run_squad.py"
    head = names.SQUAD

    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        from bert_tf.tasks.question_answering.export import ExportableSpans

        model = trained.model
        longest = settings.length.max_seq_length or model.config.max_position_embeddings
        windows = settings.spans.windows(longest) if settings.length.text_signature else None
        return ExportableSpans(model, num_candidates=settings.spans.n_best_size, windows=windows)


class _MaskedWords(Task):
    predictor = "bert_tf.tasks.pretraining.mask_filler:mask_filler"
    head = names.MASKED_LM

    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        from bert_tf.tasks.pretraining.export import ExportableMaskFiller

        length = settings.length.max_seq_length
        return ExportableMaskFiller(trained.model, top=settings.top, max_seq_length=length)


class _Vectors(Task):
    predictor = "bert_tf.tasks.vectors.encoder:TextEncoder"
    head = None

    def exportable(self, trained: TrainedModel, settings: ExportSettings) -> Exportable:
        from bert_tf.tasks.vectors.export import ExportableVectors

        length = settings.length.max_seq_length
        return ExportableVectors(trained.model, settings.vectors, max_seq_length=length)


CLASSIFICATION, TAGGING = "classification", "tagging"
QUESTION_ANSWERING = "question_answering"
# A head belongs to the first task that has it.
TASKS: Mapping[str, Task] = {
    CLASSIFICATION: _Classification(),
    TAGGING: _Tagging(),
    "multiple_choice": _MultipleChoice(),
    QUESTION_ANSWERING: _QuestionAnswering(),
    "masked_words": _MaskedWords(),
    "vectors": _Vectors(),
}


def _trained_length(trained: TrainedModel, settings: ExportSettings) -> int | None:
    return settings.length.max_seq_length or trained.model.kept.get("max_seq_length")


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
    return TrainedModel(task, model, TASKS[task].classes(source))


def exportable_of(trained: TrainedModel, settings: ExportSettings) -> Exportable:
    """The network of a model with its signatures.

    Texts are read as in the model's training: up to the length, and of longer ones the part, that
    its run was given. Raises UserError for settings that do not fit the model.
    """
    return TASKS[trained.task].exportable(trained, settings)


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
