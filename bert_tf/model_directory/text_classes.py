"""The classes that a model assigns to texts: ``text_classes.json``, or Hugging Face's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.model_directory.labels import TEXT_CLASSES_NAME, labels_of_settings
from bert_tf.util.errors import UserError
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

# Hugging Face's names of what a head predicts (problem_type).
SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"
KINDS = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)

DEFAULT_THRESHOLD = 0.5

# In a config.json of Hugging Face, where transformers keeps it and does not use it.
THRESHOLD_KEY = "multi_label_threshold"


@dataclasses.dataclass(frozen=True)
class TextClasses:
    """What the outputs of a classification head mean.

    Attributes:
      kind: SINGLE_LABEL, MULTI_LABEL or REGRESSION.
      labels: the classes, in the order of the outputs; () for a regression.
      threshold: the probability from which a text has a class, for MULTI_LABEL.
    """

    kind: str
    labels: tuple[str, ...] = ()
    threshold: float = DEFAULT_THRESHOLD


def write_text_classes(directory: Path, classes: TextClasses) -> None:
    """Writes ``text_classes.json``."""
    write_sealed_json(directory / TEXT_CLASSES_NAME, dataclasses.asdict(classes))


def find_text_classes(
    directory: Path, settings: Mapping[str, Any], config_file: Path | None
) -> TextClasses | None:
    """The classes of a model; None for one that does not classify texts, or does not name them.

    ``config_file`` is the model's, with ``settings``. If it is Hugging Face's, it also says whether
    the model classifies texts. Raises UserError for a damaged file.
    """
    architectures = settings.get("architectures")
    if architectures is None:
        return read_text_classes(directory)
    if config_file is None or "BertForSequenceClassification" not in str(architectures):
        return None
    labels = labels_of_settings(settings, config_file)
    kind = settings.get("problem_type") or (REGRESSION if len(labels) == 1 else SINGLE_LABEL)
    if kind not in KINDS:
        raise UserError(
            f"{config_file}: its problem_type must be one of {', '.join(KINDS)}; restore the file."
        )
    threshold = settings.get(THRESHOLD_KEY, DEFAULT_THRESHOLD)
    if not isinstance(threshold, (int, float)):
        raise UserError(f"{config_file}: its {THRESHOLD_KEY} must be a number; restore the file.")
    return TextClasses(kind, () if kind == REGRESSION else labels, threshold)


def read_text_classes(directory: Path) -> TextClasses | None:
    """The classes that ``text_classes.json`` has; None without it, UserError if it is damaged."""
    path = directory / TEXT_CLASSES_NAME
    if not path.is_file():
        return None
    advice = "restore it, or train the model again"
    content = read_sealed_json(path, what="classes", advice=advice, required=True)
    labels = content.get("labels")
    threshold = content.get("threshold")
    if (
        content.get("kind") not in KINDS
        or not isinstance(labels, list)
        or not all(isinstance(label, str) for label in labels)
        or not isinstance(threshold, float)
    ):
        raise UserError(f"classes {path}: kind, labels or threshold are not valid; {advice}.")
    return TextClasses(content["kind"], tuple(labels), threshold)
