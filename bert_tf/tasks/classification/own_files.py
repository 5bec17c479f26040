"""A user's own table as examples: its columns, its labels and the classes that they name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

from bert_tf.config.declared import Settings, setting
from bert_tf.finetune.tables import Table, open_table
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.tasks.classification.texts import OF_RATINGS, Label, Row, TextFile, TextTask
from bert_tf.util.errors import UserError, short_repr

# In ledgers, where GLUE's tasks have their names: a model of the one is not used for the other.
OWN_TEXTS, OWN_PAIRS = "own texts", "own pairs"

_METRICS: dict[str, tuple[str, ...]] = {
    SINGLE_LABEL: ("accuracy", "macro_f1"),
    MULTI_LABEL: ("micro_f1", "macro_f1", "exact_match"),
    REGRESSION: OF_RATINGS,
}

_METRICS_WITH_NEGATIVE = ("micro_f1", "macro_f1", "accuracy")

_TEXT_COLUMNS = ("text", "sentence", "sentence1")
_LABEL_COLUMNS = ("label", "labels")
# More labels than this, most of them of a single text, are ratings or names, not classes.
_MOST_CLASSES = 1000
_LARGEST_RATING = (2 - 2**-23) * 2.0**127  # of float32, in which records have them


@dataclasses.dataclass(frozen=True)
class TableSettings(Settings):
    """Where a table has its texts and labels, and what the labels are."""

    text_column: str = setting(
        "",
        "Column of the text (default: text, sentence or sentence1, or the only one left).",
        of_model=True,
    )
    pair_column: str = setting("", "Column of a second text; pairs are classified.", of_model=True)
    label_column: str = setting(
        "", "Column of the label (default: label or labels).", of_model=True
    )
    has_header: bool = setting(
        True,
        "Whether the first line of a CSV or TSV names the columns; else they are 1, 2, ...",
        of_model=True,
    )
    negative_label: str = setting(
        "",
        "Class that is left out of F1, such as the one without a relation; micro F1 of the others "
        "then comes first.",
        of_model=True,
    )
    multi_label: bool = setting(False, "A text has any number of labels.", of_model=True)
    label_separator: str = setting(",", "What separates the labels of a text.", of_model=True)
    regression: bool = setting(False, "Labels are ratings: any numbers.", of_model=True)

    @property
    def kind(self) -> str:
        """SINGLE_LABEL, MULTI_LABEL or REGRESSION."""
        if self.regression:
            return REGRESSION
        return MULTI_LABEL if self.multi_label else SINGLE_LABEL

    def contradictions(self) -> Iterator[str]:
        """Two kinds of labels, and no separator."""
        if self.multi_label and self.regression:
            yield "--multi_label and --regression contradict each other; leave one of them out."
        if self.negative_label and self.kind != SINGLE_LABEL:
            yield (
                "--negative_label is for one class per text, not with --multi_label or "
                "--regression; leave it out."
            )
        if not self.label_separator:
            yield "--label_separator is empty; give the character between labels, such as a comma."


# The columns of the text, the second text and the label; None for those that are not read.
Columns = tuple[str, Union[str, None], Union[str, None]]

# A class's name, the names of all classes of a text, or a rating.
GivenLabel = Union[str, tuple[str, ...], float]


class _Example(NamedTuple):
    where: str
    first: str
    second: str | None
    label: GivenLabel | None


@dataclasses.dataclass(frozen=True)
class Texts:
    """The examples of a table, whose rows are read, with labels as they were given."""

    table: Table
    columns: Columns
    examples: Sequence[_Example]

    def classes(self) -> tuple[str, ...]:
        """The names of all classes: whole numbers in their order, or else names in theirs.

        Raises UserError if there is one class only.
        """
        labels = {example.label for example in self.examples}
        names = {label for label in labels if isinstance(label, str)}
        names.update(*(label for label in labels if isinstance(label, tuple)))
        shown = f"--{self.table.flag}: column {short_repr(self.columns[2])} of {self.table.path}"
        if len(names) < 2:
            only = f"only the label {short_repr(*names)}" if names else "no label"
            raise UserError(
                f"{shown} has {only}, so there is nothing to distinguish; give a file with two "
                "labels or more."
            )
        if len(names) > max(_MOST_CLASSES, len(self.examples) // 2):
            raise UserError(
                f"{shown} has {len(names):,} different labels in {len(self.examples):,} rows; give "
                "--label_column, or --regression if they are ratings."
            )
        try:
            return tuple(sorted(names, key=lambda name: (int(name), name)))  # 1 and 01 are two
        except ValueError:
            return tuple(sorted(names))

    def with_numbers(self, task: TextTask) -> TextFile:
        """The examples with the numbers of their classes.

        Raises UserError for a label that the task does not have, naming its line.
        """
        numbers = {name: number for number, name in enumerate(task.classes.labels)}
        rows = [
            Row(example.first, example.second, self._number(example, numbers))
            for example in self.examples
        ]
        return TextFile(self.table.path, task, rows)

    def _number(self, example: _Example, numbers: dict[str, int]) -> Label | None:
        label = example.label
        if label is None or isinstance(label, float):
            return label
        names = (label,) if isinstance(label, str) else label
        for name in names:
            if name not in numbers:
                shown = ", ".join([*map(repr, list(numbers)[:10]), *["..."][: len(numbers) > 10]])
                raise UserError(
                    f"{example.where} has the label {short_repr(name)}, which the model does not "
                    f"know; its labels are {shown}; correct it, or train with such examples."
                )
        if isinstance(label, str):
            return float(numbers[label])
        return tuple(sorted({numbers[name] for name in names}))


def read_texts(path: Path, settings: TableSettings, *, flag: str, needs_labels: bool) -> Texts:
    """Reads a table (see :func:`open_table`); without ``needs_labels`` all labels are None.

    Raises UserError, which names ``flag`` and the line: the file cannot be read, lacks a column or
    has no rows; a text is empty, or a label is not one.
    """
    table = open_table(path, flag=flag, has_header=settings.has_header)
    label = None
    if needs_labels:
        label = settings.label_column or _usual_column(table, _LABEL_COLUMNS, "label")
    text = _text_column(table, settings, label)
    pair = settings.pair_column or None
    places = [table.number_of(text, flag="text_column")]
    if pair is not None:
        places.append(table.number_of(pair, flag="pair_column"))
    of_label = None if label is None else table.number_of(label, flag="label_column")
    examples = []
    for where, cells in table.rows:
        first, *second = (_text(cells[n], where, table.columns[n]) for n in places)
        given = None
        if of_label is not None:
            given = _label(cells[of_label], where, table.columns[of_label], settings)
        examples.append(_Example(where, first, second[0] if second else None, given))
    if not examples:
        raise UserError(f"--{flag}: {path} has no rows.")
    return Texts(table, (text, pair, label), examples)


def first_fraction(names: Sequence[str]) -> str | None:
    """The first of these names of classes that is not a whole number; None unless all are numbers.

    Such classes are probably ratings.
    """
    values = [_rating(name) for name in names]
    if None in values:
        return None
    return next((name for name, value in zip(names, values) if value and value % 1), None)


def own_task(columns: Columns, settings: TableSettings, classes: Classes) -> TextTask:
    """The task of labelling the texts in these columns with these classes.

    Raises UserError if ``negative_label`` is none of the classes.
    """
    first, second, label = columns
    negative, names = settings.negative_label, list(classes.labels)
    if negative and negative not in names:
        raise UserError(
            f"--negative_label={negative} is not one of the labels, which are "
            f"{', '.join(map(short_repr, names))}."
        )
    return TextTask(
        OWN_TEXTS if second is None else OWN_PAIRS,
        first,
        second,
        label,
        _METRICS_WITH_NEGATIVE if negative else _METRICS[settings.kind],
        classes,
        negative=negative,
        lowest=-math.inf,
        highest=math.inf,
        parameters={
            "columns": [first, second, label],
            "has_header": settings.has_header,
            "label_separator": settings.label_separator,
            "multi_label": settings.multi_label,
            "classes": names,
            "num_targets": len(names) if settings.multi_label else 1,
        },
    )


def _text_column(table: Table, settings: TableSettings, label: str | None) -> str:
    used = {label, settings.pair_column, settings.label_column, *_LABEL_COLUMNS}
    others = [name for name in table.columns if name not in used]
    usual = [*_TEXT_COLUMNS, *(others if len(others) == 1 else ())]
    return settings.text_column or _usual_column(table, usual, "text")


def _usual_column(table: Table, names: Sequence[str], what: str) -> str:
    column = next((name for name in names if name in table.columns), None)
    if column is None:
        raise UserError(
            f"--{table.flag}: which column of {table.path} has the {what}? Give --{what}_column, "
            f"one of {', '.join(map(short_repr, table.columns))}."
        )
    return column


def _text(cell: Any, where: str, column: str) -> str:
    if isinstance(cell, str) and cell.strip():
        return cell
    is_empty = cell is None or isinstance(cell, str)
    raise UserError(
        f"{where}: column {short_repr(column)} "
        f"{'is empty' if is_empty else f'has {short_repr(cell)}, not a text'}; correct it, or "
        "remove the row."
    )


def _label(cell: Any, where: str, column: str, settings: TableSettings) -> GivenLabel:
    label: GivenLabel | None
    if settings.regression:
        label, wanted = _rating(cell), "a finite number of 32 bits"
    elif settings.multi_label:
        label, wanted = _names(cell, settings.label_separator), "labels"
    else:
        label, wanted = _name(cell), "a label"
    if label is None:
        raise UserError(
            f"{where}: column {short_repr(column)} has {short_repr(cell)}, not {wanted}; correct "
            "it, or remove the row."
        )
    return label


def _name(cell: Any) -> str | None:
    """A class's name; numbers that are whole have no decimals."""
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return None
        cell = int(cell) if cell.is_integer() else cell
    if not isinstance(cell, (str, int, float)):
        return None
    return str(cell).strip() or None


def _names(cell: Any, separator: str) -> tuple[str, ...] | None:
    parts = [] if cell is None else cell
    if not isinstance(parts, (list, tuple)):
        whole = cell if isinstance(cell, str) else _name(cell)
        if whole is None:
            return None
        parts = [part for part in whole.split(separator) if part.strip()]
    names = [_name(part) for part in parts]
    return None if None in names else tuple(filter(None, names))


def _rating(cell: Any) -> float | None:
    if isinstance(cell, bool):
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if abs(value) <= _LARGEST_RATING else None


def require_same_kind(classes: Classes, settings: TableSettings, *, source: object) -> None:
    """Raises UserError if a model's labels are of another kind than the settings say."""
    if classes.kind != settings.kind:
        trained, wanted = (kind.replace("_", " ") for kind in (classes.kind, settings.kind))
        raise UserError(
            f"{source} was trained for {trained}, not for {wanted}; give the same of --multi_label "
            "and --regression as in its training, or choose other weights."
        )
