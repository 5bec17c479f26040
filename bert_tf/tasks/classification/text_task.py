"""What is said of a text: its class, its classes, or a rating; and texts with such labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Union

from bert_tf.model_directory.text_classes import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    TextClasses,
)

# A class's number or a rating; or the numbers of all classes of a text, ascending.
Label = Union[float, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task: its columns, its valid labels and its metrics.

    Attributes:
      name: in ledgers, manifests and messages.
      first, second: columns of the sentences; ``second`` is None for single sentences.
      label: column of the labels; None if there is none.
      metrics: names in ``metrics.METRICS``; checkpoints are compared by the first one.
      classes: the labels, in the order of their class numbers; () for a regression.
      multi_label: whether a text may have several classes, or none.
      lowest, highest: the range of a regression's labels.
      stage: the stage that makes its records, for manifests.
      parameters: what else decides the labels in records, for manifests.
    """

    name: str
    first: str
    second: str | None
    label: str | None
    metrics: tuple[str, ...]
    classes: tuple[str, ...] = ("0", "1")
    multi_label: bool = False
    lowest: float = 0.0
    highest: float = 0.0
    stage: str = "text_features"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_regression(self) -> bool:
        """Whether the task predicts a number instead of a class."""
        return not self.classes

    @property
    def kind(self) -> str:
        """SINGLE_LABEL, MULTI_LABEL or REGRESSION."""
        if self.is_regression:
            return REGRESSION
        return MULTI_LABEL if self.multi_label else SINGLE_LABEL

    @property
    def num_outputs(self) -> int:
        """The number of a network's outputs per example."""
        return len(self.classes) or 1

    @property
    def num_targets(self) -> int:
        """Values of an example's label in a record."""
        return self.num_outputs if self.multi_label else 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """The columns of the sentences."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def stored_classes(self) -> TextClasses:
        """What is stored with a model of this task."""
        return TextClasses(self.kind, self.classes)


class Row(NamedTuple):
    """An example: one or two sentences, and its label, if any."""

    first: str
    second: str | None
    label: Label | None

    @property
    def sentences(self) -> list[str]:
        """Its one or two sentences."""
        return [text for text in (self.first, self.second) if text is not None]


@dataclasses.dataclass(frozen=True)
class TextFile:
    """The contents of a file.

    Attributes:
      path: the file.
      task: what its labels mean.
      rows: its examples, in order.
    """

    path: Path
    task: TextTask
    rows: list[Row]
