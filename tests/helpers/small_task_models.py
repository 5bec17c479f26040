"""Model directories for every task, small enough for any test, with weights drawn at random."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bert_tf.model_directory.classes import CHOICE, MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.task import ChoiceTask
from bert_tf.tasks.tagging.task import TaggingTask
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.small_span_model import CONFIG, write_model, write_weights

WORD_LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
CLASSES = {
    "single": Classes.of_texts(SINGLE_LABEL, ("good", "bad", "neither")),
    "several": Classes.of_texts(MULTI_LABEL, ("good", "long", "old"), threshold=0.375),
    "rating": Classes(REGRESSION),
}


def write_classifier(directory: Path, kind: str = "single") -> Path:
    """A classifier with one of ``CLASSES``."""
    classes = CLASSES[kind]
    specs = ClassificationTask(CONFIG, len(classes.labels) or 1).specs()
    return write_weights(directory, specs, classes=classes)


def write_tagger(directory: Path) -> Path:
    """A tagger with ``WORD_LABELS``."""
    specs = TaggingTask(CONFIG, len(WORD_LABELS)).specs()
    return write_weights(directory, specs, classes=Classes("word_labels", WORD_LABELS))


def write_chooser(directory: Path) -> Path:
    """A model for multiple choice."""
    return write_weights(directory, ChoiceTask(CONFIG).specs(), classes=Classes(CHOICE))


def write_pretrained(directory: Path) -> Path:
    """A model with a masked-LM head and one for next sentences."""
    return write_weights(directory, pretraining_specs(CONFIG, next_sentence=True))


def write_encoder(directory: Path) -> Path:
    """A model without a head, of two layers."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=2)
    return write_model(directory, span_head=False, config=config)


WRITERS = {
    "classification": write_classifier,
    "tagging": write_tagger,
    "multiple_choice": write_chooser,
    "question_answering": write_model,
    "masked_words": write_pretrained,
    "vectors": write_encoder,
}
