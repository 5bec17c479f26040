"""Questions with several choices, in JSON lines, tables of SWAG or directories of RACE."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.finetune.tables import open_table
from bert_tf.records.sequences import Encoded, TokenSequence, inputs_of, joined
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.windows import kept_counts
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_json_object

VERSION = 1  # goes up when the records of equal input change

_NAMES = {
    "train": ("train.jsonl", "train.csv", "train"),
    "dev": ("dev.jsonl", "val.jsonl", "dev.csv", "val.csv", "dev"),
    "test": ("test.jsonl", "test.csv", "test"),
}
_LETTERS = "ABCDEFGH"  # RACE's answers
# The blank that choices fill in questions of RACE; not a part of a word.
_BLANK = re.compile(r"(?<!\w)_+(?!\w)")


class Question(NamedTuple):
    """A context, what is asked about it, "" for nothing, and the choices.

    Attributes:
      label: the number of the right choice, from 0; None if it was not read.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None

    @property
    def continuations(self) -> list[str]:
        """The question with each choice: in the place of its blank ``_``, or else after it."""
        if _BLANK.search(self.question):
            before_and_after = _BLANK.split(self.question)
            return [choice.join(before_and_after) for choice in self.choices]
        return [f"{self.question} {choice}".strip() for choice in self.choices]


@dataclasses.dataclass(frozen=True)
class ChoiceFile:
    """The questions of a file, or of all ``paths`` below a directory."""

    path: Path
    paths: list[Path]
    questions: list[Question]

    @property
    def num_choices(self) -> int:
        """The most choices of a question."""
        return max(len(question.choices) for question in self.questions)


def find_split(data_dir: Path, split: str, *, flag: str) -> Path:
    """The file or directory of a split; raises UserError if there is none."""
    return find_file(data_dir, _NAMES[split], flag=flag, advice="give the directory of the files")


def read_questions(path: Path, *, flag: str, needs_labels: bool) -> ChoiceFile:
    """Reads a table of own questions or of SWAG, or the files of RACE in a directory.

    Raises UserError, which names ``flag`` and the place, if the file cannot be read or has no
    questions, and for a question that is not valid.
    """
    paths, read = [path], _table
    if path.is_dir():
        paths, read = sorted(path.rglob("*.txt")), _race
    questions = [
        question_of(values, where=where, needs_label=needs_labels)
        for file in paths
        for where, values in read(file, flag)
    ]
    if not questions:
        raise UserError(
            f"--{flag}: {path} has no questions; give JSON lines, a table of SWAG (.csv) or a "
            "directory of RACE."
        )
    return ChoiceFile(path, paths, questions)


def question_of(values: Any, *, where: str, needs_label: bool = False) -> Question:
    """A question from the values of a JSON object.

    They are ``context``, ``choices`` and, optionally, ``question`` and ``label``, the number of the
    right choice from 0. Raises UserError, which begins with ``where``, for others.
    """
    given: Any = values if isinstance(values, Mapping) else {}
    context, question, choices = (given.get(name) for name in ("context", "question", "choices"))
    question = "" if question is None else question
    texts = tuple(choices) if isinstance(choices, (list, tuple)) else ()
    if len(texts) < 2 or not all(isinstance(text, str) for text in (context, question, *texts)):
        raise UserError(
            f'{where} needs a text "context" and two texts or more in the list "choices", and may '
            'have a text "question"; correct it.'
        )
    if not needs_label:
        return Question(context, question, texts)
    label = given.get("label")
    if type(label) is not int or not 0 <= label < len(texts):
        raise UserError(
            f"{where} has the label {short_repr(label)}, not the number of one of its {len(texts)} "
            "choices, which count from 0; correct it."
        )
    return Question(context, question, texts, label)


def _table(path: Path, flag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Own questions, or the rows of Zellers et al. 2018, of which each choice ends a sentence."""
    table = open_table(path, flag=flag)
    endings = [name for name in table.columns if re.fullmatch(r"ending\d+", name)]
    for where, cells in table.rows:
        values = dict(zip(table.columns, cells))
        if endings:
            label: Any = values.get("label")
            if isinstance(label, str) and label.isascii() and label.isdigit():
                label = int(label)
            values = {
                "context": values.get("sent1"),
                "question": values.get("sent2"),
                "choices": [values[name] for name in endings],
                "label": label,
            }
        yield where, values


def _race(path: Path, flag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions of Lai et al. 2017 on one article; answers are letters."""
    content = read_json_object(path, what=f"--{flag}")
    lists: list[Any] = [content.get(name) for name in ("questions", "options", "answers")]
    lengths = {len(each) if isinstance(each, list) else None for each in lists}
    if None in lengths or len(lengths) > 1:
        raise UserError(
            f"--{flag}: {path} is not a file of RACE, with lists of questions, options and answers "
            "of equal length; correct it."
        )
    for number, (question, choices, answer) in enumerate(zip(*lists), start=1):
        label = _LETTERS.find(answer) if isinstance(answer, str) and len(answer) == 1 else None
        values = {"context": content.get("article"), "question": question}
        yield (
            f"--{flag}: question {number} of {path}",
            {**values, "choices": choices, "label": label},
        )


def check_length(max_seq_length: int) -> None:
    """Raises UserError for a length without room for a token of context and choice."""
    if max_seq_length < 5:
        raise UserError(
            f"--max_seq_length={max_seq_length} has no room for [CLS], a context, [SEP], a choice "
            "and [SEP]; give at least 5."
        )


@dataclasses.dataclass(frozen=True)
class QuestionEncoder:
    """Encodes questions as records (see :class:`bert_tf.records.sequences.Encoder`).

    A record has ``num_choices`` sequences; where a question has fewer choices, the others are
    [CLS] alone, which the network does not choose.
    """

    max_seq_length: int
    num_choices: int

    def encode(self, items: Sequence[Question], tokenizer: Tokenizer) -> Encoded:
        """Encodes questions in order, [N, choices, S]."""
        sequences: list[TokenSequence] = []
        num_cut = 0
        for question in items:
            found, is_cut = sequences_of(question, tokenizer, self.max_seq_length)
            absent = self.num_choices - len(found)
            sequences += [*found, *[([tokenizer.cls_id], [0])] * absent]
            num_cut += is_cut
        inputs = inputs_of(sequences, self.max_seq_length, tokenizer)
        shape = len(items), self.num_choices, self.max_seq_length
        features = {name: values.reshape(shape) for name, values in inputs.items()}
        labels = np.array([[question.label or 0] for question in items])
        counts = {"questions": len(items), "cut_questions": num_cut}
        return Encoded({**features, "labels": labels}, counts)


def sequences_of(
    question: Question, tokenizer: Tokenizer, max_seq_length: int
) -> tuple[list[TokenSequence], bool]:
    """``[CLS] context [SEP] continuation [SEP]`` for each choice, and whether any was cut.

    The longer of both loses its end until they fit, as in google-research/bert.
    """
    context, found, is_cut = tokenizer.encode(question.context), [], False
    for text in question.continuations:
        parts = [context, tokenizer.encode(text)]
        counts = [len(part) for part in parts]
        kept = kept_counts(counts, max_seq_length - 3)
        found.append(joined([part[:count] for part, count in zip(parts, kept)], tokenizer))
        is_cut |= kept != counts
    return found, is_cut
