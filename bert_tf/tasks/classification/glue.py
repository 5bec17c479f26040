"""Files of the GLUE benchmark (Wang et al. 2019): their names and columns."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from bert_tf.tasks.classification.text_task import Row, TextFile, TextTask
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

TRAIN, DEV, TEST = "train", "dev", "test"


@dataclasses.dataclass(frozen=True)
class GlueTask(TextTask):
    """A task of the benchmark, and how its files look.

    Attributes:
      columns: the columns of files without a header, () if every file has one.
      optional_columns: further columns that files without a header may have, all or none of them.
      file_names: patterns of a split's file name; the first file that exists is used.
    """

    stage: str = "glue_features"
    columns: tuple[str, ...] = ()
    optional_columns: tuple[str, ...] = ()
    file_names: tuple[str, ...] = ("{split}.tsv",)


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


def read_glue(task: GlueTask, path: Path, *, flag: str, needs_labels: bool) -> TextFile:
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
    return TextFile(path, task, rows)


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
