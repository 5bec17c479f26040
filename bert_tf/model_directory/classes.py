"""What the outputs of a classification head mean: classes of words or texts, ratings, choices.

They are in a directory's ``model.json``. Hugging Face's settings name them, too, and ``labels.txt``
those of NVIDIA's checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.text.vocabulary import HALF_A_PAIR
from bert_tf.util.digest import digest_of_json
from bert_tf.util.errors import UserError, short_repr

# Classes of words, scores by which choices are compared, and Hugging Face's names of what a head
# for whole texts predicts (problem_type).
WORD_LABELS = "word_labels"
CHOICE = "multiple_choice"
SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"
TEXT_KINDS = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)

DEFAULT_THRESHOLD = 0.5

# In a config.json of Hugging Face, where transformers keeps it and does not use it.
THRESHOLD_KEY = "multi_label_threshold"

_MOST_UNNAMED = 1_000_000  # which take 0.3 s; damaged files may have any number

LABELS_NAME = "labels.txt"


@dataclasses.dataclass(frozen=True)
class Classes:
    """What the outputs of a classification head mean.

    Attributes:
      kind: WORD_LABELS, SINGLE_LABEL, MULTI_LABEL, REGRESSION or CHOICE.
      labels: the classes, in the order of the outputs; () for a regression and for choices.
      thresholds: for MULTI_LABEL, the probability of each class from which a text has it.
    """

    kind: str
    labels: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises UserError for values that no head has."""
        is_text = all(isinstance(n, str) and n and not HALF_A_PAIR.search(n) for n in self.labels)
        if is_text and self.of_words:  # each is the end of a line in a file of predictions
            is_text = {"\n", "\r"}.isdisjoint("".join(self.labels))
        if self.kind not in (WORD_LABELS, CHOICE, *TEXT_KINDS):
            raise UserError(f"{short_repr(self.kind)} is not a kind of classes.")
        if not is_text or len(set(self.labels)) < len(self.labels):
            raise UserError("its classes must have names that are text, all of them different.")
        if (self.kind in (REGRESSION, CHOICE)) != (not self.labels):
            raise UserError(
                "a rating has no classes, nor have choices, and all other kinds have some."
            )
        if len(self.thresholds) != (len(self.labels) if self.kind == MULTI_LABEL else 0):
            raise UserError("it must have a threshold for each class that texts may have.")
        if not all(type(t) is float and math.isfinite(t) for t in self.thresholds):
            raise UserError("its thresholds must be finite numbers.")

    @classmethod
    def of_texts(
        cls, kind: str, labels: tuple[str, ...] = (), threshold: float = DEFAULT_THRESHOLD
    ) -> Classes:
        """The classes of texts, with one threshold for all of them where one is needed."""
        count = len(labels) if kind == MULTI_LABEL else 0
        return cls(kind, labels, (float(threshold),) * count)

    @property
    def of_words(self) -> bool:
        """Whether words have them, not whole texts."""
        return self.kind == WORD_LABELS

    @property
    def num_outputs(self) -> int:
        """The outputs of the head."""
        return len(self.labels) or 1

    @property
    def digest(self) -> str:
        """A digest of the kind and the labels, in their order."""
        return digest_of_json([self.kind, *self.labels])

    def described(self) -> str:
        """For messages."""
        return ", ".join(self.labels) or f"of a {'choice' if self.kind == CHOICE else 'rating'}"


def classes_of_huggingface(settings: Mapping[str, Any], source: Path) -> Classes | None:
    """The classes in the settings of a Hugging Face model; None if it has no such head.

    Unnamed ones get transformers' default names. Raises UserError if they are malformed.
    """
    architectures = str(settings.get("architectures"))
    if "ForTokenClassification" in architectures:
        return Classes(WORD_LABELS, _named_labels(settings, source))
    if "ForMultipleChoice" in architectures:
        return Classes(CHOICE)
    if "ForSequenceClassification" not in architectures:
        return None
    labels = _named_labels(settings, source)
    kind = settings.get("problem_type") or (REGRESSION if len(labels) == 1 else SINGLE_LABEL)
    threshold = settings.get(THRESHOLD_KEY, DEFAULT_THRESHOLD)
    if kind not in TEXT_KINDS:
        raise UserError(
            f"{source}: its problem_type must be one of {', '.join(TEXT_KINDS)}; restore the file."
        )
    if not isinstance(threshold, (int, float)) or not math.isfinite(threshold):
        raise UserError(f"{source}: its {THRESHOLD_KEY} must be a number; restore the file.")
    return Classes.of_texts(kind, () if kind == REGRESSION else labels, threshold)


def _named_labels(settings: Mapping[str, Any], source: Path) -> tuple[str, ...]:
    named = settings.get("id2label")
    if named is None:
        count = settings.get("num_labels", 2)
        if not isinstance(count, int) or not 0 < count <= _MOST_UNNAMED:
            raise UserError(
                f"{source}: its num_labels is {short_repr(count)}, not a number of classes from 1 "
                f"to {_MOST_UNNAMED:,}; restore the file."
            )
        named = {index: f"LABEL_{index}" for index in range(count)}
    by_number = {str(n): name for n, name in named.items()} if isinstance(named, Mapping) else {}
    labels: tuple[Any, ...] = tuple(map(by_number.get, map(str, range(len(by_number)))))
    try:
        if not labels:
            raise UserError("it has no class.")
        return Classes(WORD_LABELS, labels).labels
    except UserError:
        raise UserError(
            f"{source}: its id2label must name classes 0, 1, 2 and so on, all of them differently "
            "and as text; restore the file."
        ) from None


def classes_in_labels_file(directory: Path) -> Classes | None:
    """The classes of words in a ``labels.txt``; None without one; UserError if it is damaged."""
    path = directory / LABELS_NAME
    if not path.is_file():
        return None
    try:
        # The last line's end is optional.
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
        return Classes(WORD_LABELS, tuple(lines))
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(
            f"labels {path}: {str(error).rstrip('.')}; restore it, or train the model again."
        ) from error
