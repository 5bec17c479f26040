"""Files of the GLUE benchmark (Wang et al. 2019): where they lie, and what is in their columns."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

from bert_tf.errors import UserError
from bert_tf.files import require_file

TRAIN, DEV, TEST = "train", "dev", "test"


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task: its columns, what may stand in that of the labels, and how it is scored.

    Attributes:
      name: as GLUE writes it; also of its directory.
      first, second: columns of the sentences; ``second`` is None where there is one sentence.
      label: column of the labels.
      columns: those of a file whose first line does not name them, () where every file does.
      optional_columns: further ones that such a file may have, all or none of them.
      classes: the labels, in the order of their numbers; () for a rating.
      lowest, highest: of a rating.
      metrics: names in ``metrics.METRICS``, the first one compares checkpoints.
      file_names: patterns of the file of a split, the first one that is there counts.
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
    def is_rating(self) -> bool:
        """Whether a number is predicted, and not a class."""
        return not self.classes

    @property
    def num_outputs(self) -> int:
        """Numbers that a network computes for an example."""
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
        # The files of the STS benchmark itself, which GLUE's are made of.
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
    """One example: a sentence or two, and a class's number or a rating; None where it has none."""

    first: str
    second: str | None
    label: float | None

    @property
    def sentences(self) -> list[str]:
        """One or two."""
        return [text for text in (self.first, self.second) if text is not None]


@dataclasses.dataclass(frozen=True)
class GlueFile:
    """A file that was read."""

    path: Path
    task: GlueTask
    rows: list[Row]


def find_task(name: str, *, flag: str) -> str:
    """The key in ``GLUE_TASKS`` of a name; case and hyphens do not count.

    Raises UserError for another name.
    """
    for key in GLUE_TASKS:
        if _letters(key) == _letters(name):
            return key
    known = ", ".join(task.name for task in GLUE_TASKS.values())
    raise UserError(f"--{flag}={name} is not one of {known}.")


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_file(task: GlueTask, data_dir: Path, split: str, *, flag: str) -> Path:
    """The file of a split; raises UserError where the directory has none."""
    names = [name.format(split=split) for name in task.file_names]
    found = [data_dir / name for name in names if (data_dir / name).exists()]
    if not found:
        raise UserError(
            f"--{flag}: {data_dir} has no {' and no '.join(names)}; give the directory of "
            f"{task.name}'s files."
        )
    return require_file(found[0], flag=flag)


def read_glue(task: GlueTask, path: Path, *, flag: str, needs_labels: bool) -> GlueFile:
    """Reads a file: UTF-8, columns with tabs between them, quotation marks belong to the text.

    Args:
      task: which columns there are.
      path: the file.
      flag: what a user named it by.
      needs_labels: without, the labels are not looked at and None in all rows.

    Raises:
      UserError: the file cannot be read, has other columns, a label that is not the task's, or no
        row; it names the line.
    """
    lines = _lines(require_file(path, flag=flag), flag=flag)
    names = lines[0].split("\t") if lines else []
    wanted = (*task.sentences, *((task.label,) if needs_labels else ()))
    if set(task.sentences) <= set(names):
        counts, first_row = (len(names),), 1
    elif task.columns:
        names, first_row = [*task.columns, *task.optional_columns], 0
        counts = tuple({len(task.columns): None, len(names): None})
    else:
        counts, first_row = (), 1
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UserError(
            f"--{flag}: line 1 of {path} names no column {missing[0]!r}; give a file of "
            f"{task.name}."
        )
    numbers = [names.index(name) for name in wanted]
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


def _lines(path: Path, *, flag: str) -> list[str]:
    """The lines of a file without their ends, and without an empty last one."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"--{flag}: line {line} of {path} is not UTF-8; convert the file."
        ) from error
    # Not str.splitlines, which ends lines at other characters too.
    lines = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


def _label(task: GlueTask, text: str, *, where: str) -> float:
    """A class's number or a rating; ``where`` begins the sentence of a UserError."""
    if not task.is_rating:
        if text in task.classes:
            return float(task.classes.index(text))
        allowed = " or ".join(task.classes)
    else:
        try:
            rating = float(text)
        except ValueError:
            rating = math.nan
        if task.lowest <= rating <= task.highest:
            return rating
        allowed = f"a number from {task.lowest:g} to {task.highest:g}"
    raise UserError(f"{where} has the label {text!r}, which must be {allowed}; correct it.")
