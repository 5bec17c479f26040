"""What is said of a text: its class, its classes, or a rating; and texts with such labels."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

from bert_tf.config.declared import AT_LEAST_ONE, Settings, setting
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.text.windows import kept_counts, windows_of

# Metrics of ratings (``metrics.METRICS``).
CORRELATIONS = ("spearman", "pearson")
OF_RATINGS = (*CORRELATIONS, "mean_absolute_error", "root_mean_squared_error")

# A class's number or a rating; or the numbers of all classes of a text, ascending.
Label = Union[float, tuple[int, ...]]
Tokens = Sequence[int]

_NO_OR_YES = Classes(SINGLE_LABEL, ("0", "1"))

HEAD, TAIL, HEAD_TAIL, WINDOWS = "head", "tail", "head_tail", "windows"


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task: its columns, its valid labels and its metrics.

    Attributes:
      name: in ledgers, manifests and messages.
      first, second: columns of the sentences; ``second`` is None for single sentences.
      label: column of the labels; None if there is none.
      metrics: names in ``metrics.METRICS``; checkpoints are compared by the first one.
      classes: the kind of the labels, and the classes in the order of their numbers.
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
    classes: Classes = _NO_OR_YES
    negative: str = ""
    lowest: float = 0.0
    highest: float = 0.0
    stage: str = "text_features"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_regression(self) -> bool:
        """Whether the task predicts a number instead of a class."""
        return self.classes.kind == REGRESSION

    @property
    def multi_label(self) -> bool:
        """Whether a text may have several classes, or none."""
        return self.classes.kind == MULTI_LABEL

    @property
    def num_targets(self) -> int:
        """Values of an example's label in a record."""
        return self.classes.num_outputs if self.multi_label else 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """The columns of the sentences."""
        return (self.first,) if self.second is None else (self.first, self.second)


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
        """The name of a score or a file for this part; a file's suffix stays at the end."""
        stem, dot, suffix = name.partition(".")
        return f"{stem}_{self.name}{dot}{suffix}" if self.name else name


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

    @property
    def ratings(self) -> list[float]:
        """The labels of a regression; empty for classes."""
        if not self.task.is_regression:
            return []
        labels = (row.label for row in self.rows)
        return [label for label in labels if label is not None and not isinstance(label, tuple)]

    @property
    def class_counts(self) -> list[int]:
        """The number of texts of each class."""
        counts: Counter[int] = Counter()
        for row in self.rows:
            counts.update(row.label if isinstance(row.label, tuple) else [int(row.label or 0)])
        return [counts[number] for number in range(len(self.task.classes.labels))]


@dataclasses.dataclass(frozen=True)
class LongTexts(Settings):
    """What becomes of texts with more tokens than a sequence has room for."""

    long_texts: str = setting(
        HEAD,
        "What is read of a text over --max_seq_length: its head, its tail, head_tail (a quarter of "
        "the tokens from its beginning, the rest from its end), or all of it in windows, whose "
        "predictions are averaged.",
        choices=(HEAD, TAIL, HEAD_TAIL, WINDOWS),
        of_model=True,
    )
    doc_stride: int = setting(
        128,
        "Tokens between the starts of a long text's windows.",
        bounds=AT_LEAST_ONE,
        of_model=True,
    )

    @property
    def parameters(self) -> dict[str, object]:
        """What decides records besides the defaults, for manifests."""
        if self.long_texts == HEAD:
            return {}
        stride = {"doc_stride": self.doc_stride} if self.long_texts == WINDOWS else {}
        return {"long_texts": self.long_texts, **stride}

    def cut(self, parts: Sequence[Tokens], room: int) -> list[list[Tokens]]:
        """The tokens of each sequence that one or two texts become; WINDOWS is for one text.

        Of two texts, the longer one gets shorter until both fit, as in google-research/bert. The
        quarter of HEAD_TAIL is that of Sun et al. 2019, "How to Fine-Tune BERT for Text
        Classification?", section 5.3.1: 128 of 510 tokens.
        """
        if self.long_texts == WINDOWS and len(parts) == 1:
            [part] = parts
            windows = windows_of(len(part), room, self.doc_stride) or [(0, 0)]
            return [[part[first : first + length]] for first, length in windows]
        counts = kept_counts([len(part) for part in parts], room)
        return [[self._kept(part, count) for part, count in zip(parts, counts)]]

    def _kept(self, part: Tokens, count: int) -> Tokens:
        if count == len(part):
            return part
        first = {TAIL: 0, HEAD_TAIL: count // 4}.get(self.long_texts, count)
        return [*part[:first], *part[len(part) - (count - first) :]]


CUT_OFF = LongTexts()
