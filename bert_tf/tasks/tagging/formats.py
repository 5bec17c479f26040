"""Files with one word and its labels per line, as in the shared tasks of CoNLL.

The first column of a line is the word, the last one its label. Columns are separated by tabs if the
line or the file's first one has any, otherwise by spaces; other white space may be a word. A blank
line ends a sentence; so does a line that begins with ``-DOCSTART-``, which is skipped.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

_STEMS = {"train": ("train",), "dev": ("dev", "devel", "valid"), "test": ("test",)}
_SUFFIXES = (".txt", ".tsv", ".conll")
_DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(" +")
_AROUND = " \t\r"  # not str.strip's characters, which may be words
_SHOWN_LABELS = 12


class Sentence(NamedTuple):
    """A sentence of a file.

    Attributes:
      first_line: the number of its first line, counted from 1.
      words: its words.
      labels: its labels; empty if they were not read.
    """

    first_line: int
    words: list[str]
    labels: list[str]


@dataclasses.dataclass(frozen=True)
class TaggedFile:
    """The contents of a file, including all of its lines unchanged; ``flag`` named it."""

    path: Path
    flag: str
    lines: list[str]
    sentences: list[Sentence]

    @property
    def num_words(self) -> int:
        """The number of words in all sentences."""
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def label_counts(self) -> collections.Counter[str]:
        """The number of words with each label."""
        return collections.Counter(label for s in self.sentences for label in s.labels)

    @property
    def labels(self) -> list[str]:
        """The distinct labels, sorted."""
        return sorted(self.label_counts)

    def first_use(self, labels: Container[str]) -> tuple[int, str]:
        """The first line, counted from 1, with one of these labels, and the label."""
        return next(
            (line, label)
            for sentence in self.sentences
            for line, label in enumerate(sentence.labels, start=sentence.first_line)
            if label in labels
        )


def find_split(data_dir: Path, split: str, *, flag: str) -> Path:
    """The file of a split; raises UserError if the directory has none."""
    names = [f"{stem}{suffix}" for stem in _STEMS[split] for suffix in _SUFFIXES]
    return find_file(data_dir, names, flag=flag, advice="give the directory of the files")


def read_tagged(path: Path, *, flag: str, needs_labels: bool) -> TaggedFile:
    """Reads a file in UTF-8; without ``needs_labels``, only its words.

    Raises UserError, which names ``flag`` and the line, if the file cannot be read, has JSON or no
    sentences, or has a line without a word, without a label, or with more or fewer columns than the
    first.
    """
    lines = read_lines(path, flag=flag)
    if _is_json_object(lines[0]):
        raise UserError(
            f"--{flag}: line 1 of {path} is a JSON object; give a file with a word and its label "
            "on each line."
        )
    by_tabs = _are_separated_by_tabs(lines)
    sentences: list[Sentence] = []
    in_sentence, width = False, 0
    for number, line in enumerate(lines, start=1):
        cells = columns_of(line, by_tabs=by_tabs)
        if not cells:
            in_sentence = False
            continue
        if not in_sentence:
            sentences.append(Sentence(number, [], []))
            in_sentence = True
        where = f"--{flag}: line {number} of {path}"
        if not cells[0]:
            raise UserError(f"{where} has no word before its first tab; correct it.")
        if needs_labels:
            if len(cells) == 1 or not cells[-1]:
                word = short_repr(cells[0])
                raise UserError(f"{where} has the word {word} without a label; correct it.")
            sentences[-1].labels.append(cells[-1])
        width = width or len(cells)
        if len(cells) != width:
            raise UserError(
                f"{where} has {len(cells)} columns, and the lines before it {width}; correct it, "
                "or give a file with one word on each line."
            )
        sentences[-1].words.append(cells[0])
    if not sentences:
        raise UserError(f"--{flag}: {path} has no sentences; give a file with a word on each line.")
    return TaggedFile(path, flag, lines, sentences)


def columns_of(line: str, *, by_tabs: bool = False) -> list[str]:
    """The columns of a line, empty if it is blank or begins a document.

    They are separated by tabs if there are any, or if ``by_tabs``.
    """
    line = line.rstrip(_AROUND)
    if not line or line.lstrip(_AROUND).startswith(_DOCUMENT):
        return []
    if by_tabs or "\t" in line:
        return [cell.strip(_AROUND) for cell in line.split("\t")]
    return _BLANKS.split(line.strip(_AROUND))


def _are_separated_by_tabs(lines: Sequence[str]) -> bool:
    """Whether the first line with a word has tabs; then "New York" is not a word and its label."""
    return "\t" in next((line for line in lines if columns_of(line)), "").rstrip(_AROUND)


def _is_json_object(line: str) -> bool:
    """Whether a line is an object with keys; {} may be a word."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value)


def unknown_labels(file: TaggedFile, labels: Sequence[str]) -> dict[str, int]:
    """The labels of a file that the model lacks, with the number of words that have each."""
    used = file.label_counts.most_common()
    return {label: count for label, count in used if label not in set(labels)}


def check_labels(file: TaggedFile, labels: Sequence[str]) -> None:
    """Raises UserError for a label that the model lacks, and names its line."""
    unknown = unknown_labels(file, labels)
    if unknown:
        line, label = file.first_use(unknown)
        shown = ", ".join(labels[:_SHOWN_LABELS])
        more = len(labels) - _SHOWN_LABELS
        raise UserError(
            f"--{file.flag}: line {line} of {file.path} has the label {short_repr(label)}, which "
            f"the model does not have; its labels are {shown}"
            f"{f' and {more} more' if more > 0 else ''}."
        )


def with_predictions(file: TaggedFile, predicted: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a file, each with the label predicted for its word as an additional last column.

    Lines without a word become blank. This is the input format of conlleval, the evaluation program
    of CoNLL's shared tasks.
    """
    by_line: dict[int, str] = {}
    by_tabs = _are_separated_by_tabs(file.lines)
    for sentence, labels in zip(file.sentences, predicted):
        by_line.update(enumerate(labels, start=sentence.first_line))
    for number, line in enumerate(file.lines, start=1):
        line = line.strip(_AROUND)
        separator = "\t" if by_tabs or "\t" in line else " "
        yield f"{line}{separator}{by_line[number]}" if number in by_line else ""
