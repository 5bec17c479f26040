"""Files of the GLUE benchmark (Wang et al. 2019): their columns and their sequences."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from bert_tf.errors import UserError
from bert_tf.files import require_file
from bert_tf.text.tokenizer import Tokenizer


class GlueTask(NamedTuple):
    """Where a task's rows are and what is in their columns.

    Attributes:
      train, dev: files below the directory of all tasks, columns with tabs between them.
      has_header: whether the first row names the columns.
      first, second: columns of the sentences; None where there is no second one.
      label: column of the class's number or of the rating.
      classes: how many there are; 1 for a rating.
      metric: by which a task is judged, one of ``metrics.METRICS``.
    """

    train: str
    dev: str
    has_header: bool
    first: int
    second: int | None
    label: int
    classes: int
    metric: str


GLUE_TASKS = {
    "cola": GlueTask("CoLA/train.tsv", "CoLA/dev.tsv", False, 3, None, 1, 2, "matthews"),
    "mrpc": GlueTask("MRPC/train.tsv", "MRPC/dev.tsv", True, 3, 4, 0, 2, "accuracy"),
    "sst-2": GlueTask("SST-2/train.tsv", "SST-2/dev.tsv", True, 0, None, 1, 2, "accuracy"),
    "sts-b": GlueTask("STS-B/sts-train.csv", "STS-B/sts-dev.csv", False, 5, 6, 4, 1, "spearman"),
    "wnli": GlueTask("WNLI/train.tsv", "WNLI/dev.tsv", True, 1, 2, 3, 2, "accuracy"),
}


class Row(NamedTuple):
    """One example: a sentence or two, and a class's number or a rating."""

    first: str
    second: str | None
    label: float


def read_rows(task: GlueTask, path: Path, *, flag: str) -> list[Row]:
    """The rows of a file; raises UserError where one has other columns."""
    rows = []
    with open(require_file(path, flag=flag), encoding="utf-8-sig", newline="") as file:
        # Quotation marks belong to the sentences.
        for number, cells in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)):
            if not number and task.has_header:
                continue
            try:
                second = None if task.second is None else cells[task.second]
                row = Row(cells[task.first], second, float(cells[task.label]))
            except (IndexError, ValueError):
                raise UserError(
                    f"--{flag}: line {number + 1} of {path} has other columns; give GLUE's file."
                ) from None
            rows.append(row)
    return rows


def sequence_of(row: Row, tokenizer: Tokenizer, max_seq_length: int) -> tuple[list[int], list[int]]:
    """Ids and segments of ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``.

    What is too long loses the last token of the longer sentence, again and again, as in
    google-research/bert.
    """
    parts = [tokenizer.encode(text) for text in row[:2] if text is not None]
    while sum(map(len, parts)) > max_seq_length - 1 - len(parts):
        max(reversed(parts), key=len).pop()
    ids, segments = [tokenizer.cls_id], [0]
    for number, part in enumerate(parts):
        ids += [*part, tokenizer.sep_id]
        segments += [number] * (len(part) + 1)
    return ids, segments
