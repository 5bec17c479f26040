"""Finds and reads the published files of a task: its sets, columns, labels and parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.tasks.classification.glue import GlueTask
from bert_tf.tasks.classification.text_task import Part, Row, TextFile
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

_TRAIN_FILE = "train_file"


def find_split(task: GlueTask, data_dir: Path, split: str, *, flag: str) -> list[Path]:
    """The files of a split; raises UserError if the directory lacks one of them."""
    advice = f"give the directory of {task.name}'s files"
    if task.sets.part_column:
        advice += ", or another language"
    wanted = task.sets.names(split)
    if not wanted:
        other = next(name for name in task.same_head if name != task.name)
        raise UserError(
            f"--{flag}: {task.name} has no {split} set; train a model with --task_name={other} for "
            "it."
        )
    return [find_file(data_dir, names, flag=flag, advice=advice) for names in wanted]


def read_glue(
    task: GlueTask, paths: Path | Sequence[Path], *, flag: str, needs_labels: bool
) -> TextFile:
    """Reads tab-separated files in UTF-8; quotation marks have no special meaning.

    Args:
      task: the task, which defines the columns.
      paths: the file, or the file of each part. A file with the column ``sets.part_column`` has
        several parts; rows of other parts than the task's are left out.
      flag: the flag by which the user named them. A train_file has the part to train on.
      needs_labels: if False, labels are ignored, and are None in all rows.

    Raises:
      UserError: if a file cannot be read or has other columns, an invalid label or no rows; the
        message names the line.
    """
    paths = [paths] if isinstance(paths, Path) else paths
    if flag == _TRAIN_FILE:
        task = task.in_languages((task.sets.train_part,), task.sets.train_part)
    found = [_read_file(task, path, flag, needs_labels) for path in paths]
    if len(found) == 1 and found[0].has_parts:
        parameters = {**task.parameters, task.sets.part_column: list(task.sets.parts)}
        task = dataclasses.replace(task, parameters=parameters)
    parts: list[Part] = []
    rows: list[Row] = []
    for path, name, file in zip(paths, task.sets.parts, found):
        for own_name, its_rows in file.rows.items():
            place = slice(len(rows), len(rows) + len(its_rows))
            parts.append(Part((own_name or name) if parts else "", path, place))
            rows += its_rows
    skipped = sum(file.skipped_lines for file in found)
    return TextFile(paths[0], task, rows, tuple(parts), skipped)


class _FileRows(NamedTuple):
    rows: dict[str, list[Row]]  # by part; a file without a column of parts has one, ""
    skipped_lines: int

    @property
    def has_parts(self) -> bool:
        return "" not in self.rows


class _Header(NamedTuple):
    names: list[str]
    counts: tuple[int, ...]  # how many columns lines may have
    first_row: int


def _read_file(task: GlueTask, path: Path, flag: str, needs_labels: bool) -> _FileRows:
    lines = read_lines(path, flag=flag)
    needed = (*task.sentences, *((task.label,) if needs_labels and task.label else ()))
    header = _header(task, lines, needed, f"--{flag}: line 1 of {path}")
    numbers = [header.names.index(name) for name in needed]
    column, other_parts = task.sets.part_column, set()
    part_number = header.names.index(column) if column in header.names else None
    rows: dict[str, list[Row]] = {
        part: [] for part in ([""] if part_number is None else task.sets.parts)
    }
    skipped = 0
    for number, line in enumerate(lines[header.first_row :], start=header.first_row + 1):
        cells = line.split("\t")
        if len(cells) not in header.counts:
            if task.format.skips_short_lines and needs_labels and len(cells) < header.counts[0]:
                skipped += 1
                continue
            raise UserError(
                f"--{flag}: line {number} of {path} has {_columns(len(cells))} instead of "
                f"{' or '.join(map(str, header.counts))}; correct it, or give a file of "
                f"{task.name}."
            )
        part = "" if part_number is None else cells[part_number]
        if part not in rows:
            other_parts.add(part)
            continue
        values = [cells[n] for n in numbers]
        label = None
        if needs_labels:
            label = _label(task, values.pop(), where=f"--{flag}: line {number} of {path}")
        rows[part].append(Row(values[0], values[1] if task.second else None, label))
    for part, found in rows.items():
        if not found and not part:
            raise UserError(f"--{flag}: {path} has no examples.")
        if not found:
            others = f"; it has {', '.join(sorted(other_parts))}" if other_parts else ""
            named_by = f"train_{column}" if flag == _TRAIN_FILE else column
            raise UserError(f"--{named_by}={part}: {path} has no rows in this {column}{others}.")
    return _FileRows(rows, skipped)


def _header(task: GlueTask, lines: list[str], needed: tuple[str, ...], where: str) -> _Header:
    """The columns of a file; UserError, beginning with ``where``, if it lacks a needed one."""
    form = task.format
    given = lines[0].split("\t") if lines else []
    names = [form.other_names.get(name, name) for name in given]
    counts: tuple[int, ...] = (len(names),)
    first_row = 1
    if form.without_header and not set(task.sentences) <= set(names):
        names, first_row = [*form.without_header, *form.optional], 0
        counts = tuple({len(form.without_header): None, len(names): None})
    missing = next((name for name in needed if name not in names), None)
    if missing is not None:
        others = [other for other, name in form.other_names.items() if name == missing]
        raise UserError(
            f"{where} has no column {' or '.join(map(repr, [missing, *others]))}; give a file of "
            f"{task.name}."
        )
    return _Header(names, counts, first_row)


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _label(task: GlueTask, text: str, *, where: str) -> float:
    """A class number or a score; ``where`` begins the message of a UserError."""
    if not task.is_regression:
        name = task.format.other_labels.get(text, text)
        if name in task.classes:
            return float(task.classes.index(name))
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
