"""What is said of a text: its class, its classes, or a rating; and texts with such labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Union

from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes

# Metrics of ratings (``metrics.METRICS``).
CORRELATIONS = ("spearman", "pearson")
OF_RATINGS = (*CORRELATIONS, "mean_absolute_error", "root_mean_squared_error")

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
      negative: the class that is left out of F1, "" if none is.
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
    negative: str = ""
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
    def stored_classes(self) -> Classes:
        """What is stored with a model of this task."""
        return Classes.of_texts(self.kind, self.classes)


class Row(NamedTuple):
    """An example: one or two sentences, and its label, if any."""

    first: str
    second: str | None
    label: Label | None

    @property
    def sentences(self) -> list[str]:
        """Its one or two sentences."""
        return [text for text in (self.first, self.second) if text is not None]


class Part(NamedTuple):
    """Rows that are scored and predicted apart from the others, such as those of a language.

    Attributes:
      name: appended to the names of scores and files; "" for the first part.
      path: the file that has them.
      rows: their places among all rows.
    """

    name: str
    path: Path
    rows: slice

    def named(self, name: str) -> str:
        """The name of a score or a file (without its suffix) for this part."""
        return f"{name}_{self.name}" if self.name else name


@dataclasses.dataclass(frozen=True)
class TextFile:
    """The contents of a file, or of several that are evaluated or predicted together.

    Attributes:
      path: the first file.
      task: what its labels mean.
      rows: its examples, in order.
      divided: its parts, one after the other; () if it has one only.
      skipped_lines: malformed lines that are not among the rows.
    """

    path: Path
    task: TextTask
    rows: list[Row]
    divided: tuple[Part, ...] = ()
    skipped_lines: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts, one at least."""
        return self.divided or (Part("", self.path, slice(0, len(self.rows))),)

    @property
    def paths(self) -> list[Path]:
        """All files, in order."""
        return list(dict.fromkeys(part.path for part in self.parts))

    @property
    def score_names(self) -> list[str]:
        """The names of its metrics among the results of an evaluation."""
        metrics = self.task.metrics
        return [part.named(f"eval_{name}") for part in self.parts for name in metrics]
