"""Reads the texts to score: lines or documents of text files, or a column of a table."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_tf.tasks.scoring.settings import DOCUMENT, TextSettings
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_lines

# WikiText (Merity et al. 2016) writes these for a sign inside a number or word, and for rare words.
_WIKITEXT_SIGN = re.compile(r" @([-,.])@ ")
WIKITEXT_UNKNOWN = "<unk>"


def read_texts(files: Sequence[Path], settings: TextSettings, *, flag: str) -> list[str]:
    """The texts of the files, in order; texts in a table may be blank.

    Raises UserError if a file cannot be read or lacks the column, or if there are no texts at all.
    """
    texts: list[str] = []
    for path in files:
        lines = read_lines(path, flag=flag)
        if settings.text_column is not None:
            texts += _column(path, lines, settings.text_column, flag=flag)
        else:
            texts += _blocks(lines, settings.text_unit)
    if not texts:
        raise UserError(f"--{flag}: {files[0]} contains no text; give a file with text.")
    return [_without_markers(text) for text in texts] if settings.wikitext else texts


def sampled(contents: Iterable[bytes], *, fraction: float, seed: int) -> np.ndarray:
    """Chooses a random sample of N texts: bool [N], True for round(fraction * N), but at least one.

    Texts are ranked by a hash of their content and the seed. So the sample does not depend on their
    order, and a larger fraction only adds texts to the sample of a smaller one.
    """
    ranks = np.array([_rank(content, seed) for content in contents], np.uint64)
    size = max(1, round(fraction * len(ranks)))
    is_sampled = np.zeros(len(ranks), bool)
    is_sampled[np.argsort(ranks, kind="stable")[:size]] = True
    return is_sampled


def _rank(content: bytes, seed: int) -> int:
    return int(digest_of(f"{seed}:".encode(), content)[:16], 16)


def _blocks(lines: Iterable[str], unit: str) -> Iterator[str]:
    for is_blank, block in itertools.groupby(lines, lambda line: not line.strip()):
        if not is_blank and unit == DOCUMENT:
            yield " ".join(block)
        elif not is_blank:
            yield from block


def _without_markers(text: str) -> str:
    return _WIKITEXT_SIGN.sub(r"\1", text)


def _column(path: Path, lines: Sequence[str], column: str, *, flag: str) -> Iterator[str]:
    """The cells of a column; ``column`` is its name, or its number from 1."""
    rows = _rows(path, lines, flag=flag)
    if column.isdecimal():
        index = int(column) - 1
    else:
        _, names = next(rows, (1, []))
        if column not in names:
            raise UserError(
                f"--text_column={column}: line 1 of {path} names no such column, but "
                f"{', '.join(names)}; give one of these, or a number from 1 if there is no header."
            )
        index = names.index(column)
    if index < 0:
        raise UserError(f"--text_column={column}: columns are counted from 1.")
    for number, cells in rows:
        if index >= len(cells):
            raise UserError(
                f"--{flag}: line {number} of {path} has {len(cells)} columns, and no column "
                f"{index + 1} (--text_column={column}); correct it."
            )
        yield cells[index]


def _rows(path: Path, lines: Sequence[str], *, flag: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row, with the number of its last line.

    In ``.csv`` files cells are separated by commas and may be quoted (RFC 4180); in all others they
    are separated by tabs, and quotation marks are part of the text.
    """
    if path.suffix.lower() != ".csv":
        yield from ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
        return
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    try:
        for cells in reader:
            if cells:  # not a blank line
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(
            f"--{flag}: line {reader.line_num} of {path} is not CSV ({error}); correct it."
        ) from error
