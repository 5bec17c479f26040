"""Files of the GLUE benchmark (Wang et al. 2019): their names and columns."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

TRAIN, DEV, TEST = "train", "dev", "test"


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task: its columns, its labels and its metrics.

    Attributes:
      name: the task's name in GLUE.
      first, second: columns of the sentences; ``second`` is None for single sentences.
      label: column of the labels.
      columns: the columns of files without a header, () if every file has one.
      optional_columns: columns that files without a header may have in addition, all or none.
      classes: the labels, in the order of their class numbers; () for regression.
      lowest, highest: the range of a regression's labels.
      metrics: names in ``metrics.METRICS``; checkpoints are compared by the first.
      file_names: patterns of a split's file name; the first file that exists is used.
    """

    name: str
    first: str
    second: str | None
    label: str
    metrics: tuple[str, ...]
    columns: tuple[str, ...] = ()
    optional_columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ("0", "1")
    lowest: float = 0.0
    highest: float = 0.0
    file_names: tuple[str, ...] = ("{split}.tsv",)

    @property
    def is_regression(self) -> bool:
        """Whether the task predicts a number rather than a class."""
        return not self.classes

    @property
    def num_outputs(self) -> int:
        """The number of network outputs per example."""
        return len(self.classes) or 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """The columns of the sentences."""
        return (self.first,) if self.second is None else (self.first, self.second)


GLUE_TASKS = {
    "cola": GlueTask(
        "CoLA",
        first="sentence",
        second=None,
        label="label",
        columns=("source", "label", "original_judgement", "sentence"),
        metrics=("matthews_correlation", "accuracy"),
    ),
    "mrpc": GlueTask(
        "MRPC",
        first="#1 String",
        second="#2 String",
        label="Quality",
        metrics=("accuracy", "f1"),
    ),
    "sst-2": GlueTask(
        "SST-2",
        first="sentence",
        second=None,
        label="label",
        metrics=("accuracy",),
    ),
    "sts-b": GlueTask(
        "STS-B",
        first="sentence1",
        second="sentence2",
        label="score",
        classes=(),
        lowest=0.0,
        highest=5.0,
        metrics=("spearman", "pearson"),
        # For the files of the original STS benchmark, of which GLUE's files were made.
        columns=("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"),
        optional_columns=("source1", "source2"),
        file_names=("{split}.tsv", "sts-{split}.csv"),
    ),
    "wnli": GlueTask(
        "WNLI",
        first="sentence1",
        second="sentence2",
        label="label",
        metrics=("accuracy",),
    ),
}


class Row(NamedTuple):
    """An example: one or two sentences and, if known, its label: a class number or a score."""

    first: str
    second: str | None
    label: float | None

    @property
    def sentences(self) -> list[str]:
        """The one or two sentences."""
        return [text for text in (self.first, self.second) if text is not None]


@dataclasses.dataclass(frozen=True)
class GlueFile:
    """The contents of a file."""

    path: Path
    task: GlueTask
    rows: list[Row]


def find_task(name: str, *, flag: str) -> str:
    """Finds the key of a task in ``GLUE_TASKS``, ignoring case and hyphens in its name.

    Raises UserError for an unknown name.
    """
    for key in GLUE_TASKS:
        if _normalized(key) == _normalized(name):
            return key
    known = ", ".join(task.name for task in GLUE_TASKS.values())
    raise UserError(f"--{flag}={name} is not one of {known}.")


def _normalized(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_split(task: GlueTask, data_dir: Path, split: str, *, flag: str) -> Path:
    """The file of a split; raises UserError if the directory has none."""
    names = [name.format(split=split) for name in task.file_names]
    return find_file(
        data_dir, names, flag=flag, advice=f"give the directory of {task.name}'s files"
    )


def read_glue(task: GlueTask, path: Path, *, flag: str, needs_labels: bool) -> GlueFile:
    """Reads a tab-separated file in UTF-8; quotation marks have no special meaning.

    Args:
      task: the task, which defines the columns.
      path: the file.
      flag: the flag by which the user named it.
      needs_labels: if False, labels are ignored, and are None in all rows.

    Raises:
      UserError: if the file cannot be read or has other columns, an invalid label or no rows; the
        message names the line.
    """
    lines = read_lines(path, flag=flag)
    names = lines[0].split("\t") if lines else []
    needed = (*task.sentences, *((task.label,) if needs_labels else ()))
    counts: tuple[int, ...]
    if set(task.sentences) <= set(names):
        counts, first_row = (len(names),), 1
    elif task.columns:
        names, first_row = [*task.columns, *task.optional_columns], 0
        counts = tuple({len(task.columns): None, len(names): None})
    else:
        counts, first_row = (), 1
    missing = [name for name in needed if name not in names]
    if missing:
        raise UserError(
            f"--{flag}: line 1 of {path} has no column {missing[0]!r}; give a file of {task.name}."
        )
    numbers = [names.index(name) for name in needed]
    rows = []
    for number, line in enumerate(lines[first_row:], start=first_row + 1):
        cells = line.split("\t")
        if len(cells) not in counts:
            raise UserError(
                f"--{flag}: line {number} of {path} has {_columns(len(cells))} instead of "
                f"{' or '.join(map(str, counts))}; correct it, or give a file of {task.name}."
            )
        values = [cells[n] for n in numbers]
        label = None
        if needs_labels:
            label = _label(task, values.pop(), where=f"--{flag}: line {number} of {path}")
        rows.append(Row(values[0], values[1] if task.second else None, label))
    if not rows:
        raise UserError(f"--{flag}: {path} has no examples.")
    return GlueFile(path, task, rows)


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _label(task: GlueTask, text: str, *, where: str) -> float:
    """A class number or a score; ``where`` begins the message of a UserError."""
    if not task.is_regression:
        if text in task.classes:
            return float(task.classes.index(text))
        allowed = " or ".join(task.classes)
    else:
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if task.lowest <= score <= task.highest:
            return score
        allowed = f"a number from {task.lowest:g} to {task.highest:g}"
    raise UserError(
        f"{where} has the label {short_repr(text)}, which must be {allowed}; correct it."
    )
