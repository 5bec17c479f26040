"""Reads SQuAD files, v1.1 and v2.0, and validates all that is used of them.

Format (Rajpurkar et al. 2016, 2018): ``{"version", "data": [{"title", "paragraphs": [{"context",
"qas": [{"id", "question", "answers": [{"text", "answer_start"}], "is_impossible"}]}]}]}``, where
``is_impossible`` only exists in v2.0. Some files give impossible questions an answer of empty text,
others leave the key out and have an empty list of answers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json, require_file

# Maximum distance in characters between an answer and its answer_start: in files whose texts were
# cleaned after annotation, offsets are off by a few characters.
MOST_MOVED = 3

# What answers are scored by; auto: by characters in scripts without blanks between words.
AUTO, WORDS, CHARACTERS = SCORE_UNITS = ("auto", "words", "characters")


class Answer(NamedTuple):
    """An answer and the offset in the context at which it begins, in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Example:
    """A question about ``context``, a paragraph that its questions share as a single string.

    Attributes:
      question_id: unique in a file.
      title: of the article.
      paragraph: index in the file, from 0.
      answers: empty if the question cannot be answered or the file has no answers.
      is_impossible: whether the paragraph has no answer.
      is_moved: whether the offset of the first answer was up to ``MOST_MOVED`` characters off.
    """

    question_id: str
    question: str
    context: str
    title: str
    paragraph: int
    answers: tuple[Answer, ...]
    is_impossible: bool
    is_moved: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether its first answer, if it has one, is at its offset in the context."""
        return not self.answers or _is_at(self.context, *self.answers[0])


@dataclasses.dataclass(frozen=True)
class SquadFile:
    """All questions of a file, in order.

    Attributes:
      path: the file.
      examples: at least one.
      first_of: number of questions in the file if ``examples`` are only the first; else None.
      by_characters: whether answers are scored by characters, for languages without blanks.
    """

    path: Path
    examples: tuple[Example, ...]
    first_of: int | None = None
    by_characters: bool = False

    @functools.cached_property
    def unusable(self) -> tuple[str, ...]:
        """Ids of questions whose first answer is not near its offset in the context."""
        return tuple(example.question_id for example in self.examples if not example.is_usable)

    @property
    def has_unanswerable(self) -> bool:
        """Whether there are unanswerable questions, as in v2.0."""
        return any(example.is_impossible for example in self.examples)

    @property
    def is_scored(self) -> bool:
        """Whether there are answers to compare with."""
        return any(example.answers or example.is_impossible for example in self.examples)

    def require_answers(self) -> None:
        """Raises UserError if a question has no true answer, which the rules of v1.1 require."""
        for example in self.examples:
            if not example.answers:
                raise UserError(
                    f"{self.path} has no answer to question {short_repr(example.question_id)}, so "
                    "that predictions cannot be scored; give a file with answers to all questions, "
                    "or to none."
                )

    def first(self, count: int) -> SquadFile:
        """The first ``count`` questions; the whole file if it does not have more."""
        if count >= len(self.examples):
            return self
        return dataclasses.replace(
            self, examples=self.examples[:count], first_of=len(self.examples)
        )

    def __str__(self) -> str:
        """The file's name, and how much of it is used."""
        if self.first_of is None:
            return self.path.name
        return f"{self.path.name} (the first {len(self.examples):,} of {self.first_of:,} questions)"


def read_squad(
    path: PathLike, *, flag: str, version_2_with_negative: bool, needs_answers: bool
) -> SquadFile:
    """Reads a SQuAD file, v1.1 or v2.0; training ``needs_answers``.

    With ``version_2_with_negative``, questions without answers that do not say whether they are
    impossible are unanswerable, too, if the file has answers. Raises UserError, which names
    ``flag``, if the file cannot be read, is not a SQuAD file, has no questions, duplicate ids or
    unexpected unanswerable questions, or lacks required answers.
    """
    path = require_file(path, flag=flag)
    values = read_json(path, what=f"--{flag}")
    content = _Object(values, "the file", f"--{flag}: {path}")
    if not isinstance(values, dict):
        raise content.error("it is not an object with 'data'")
    read = list(_examples(content, needs_answers, version_2_with_negative))
    unmarked = {example.question_id for example, is_marked in read if not is_marked}
    examples = tuple(example for example, _ in read)
    if not examples:
        raise UserError(f"--{flag}: {path} has no questions; give a SQuAD file.")
    if needs_answers and len(unmarked) == len(examples):
        raise UserError(f"--{flag}: no question of {path} has an answer; give a file with answers.")
    if version_2_with_negative and len(unmarked) < len(examples):
        examples = tuple(
            dataclasses.replace(e, is_impossible=True) if e.question_id in unmarked else e
            for e in examples
        )
    squad = SquadFile(path, examples)
    if squad.has_unanswerable and not version_2_with_negative:
        raise UserError(
            f"--{flag}: {path} has questions without an answer, like SQuAD v2.0; "
            "give --version_2_with_negative, or a v1.1 file."
        )
    if needs_answers and len(squad.unusable) == sum(not e.is_impossible for e in examples) > 0:
        raise UserError(
            f"--{flag}: no answer in {path} is at or near its answer_start; "
            "correct the offsets, which count characters of the context from 0."
        )
    return squad


def _is_at(context: str, text: str, start: int) -> bool:
    """Whether an answer is at an offset; kinds of white space are not distinguished."""
    found = context[start : start + len(text)] if start >= 0 else ""
    return bool(text.strip()) and (found == text or found.split() == text.split())


def _nearest(context: str, text: str, start: int) -> int:
    """The offset closest to the given one at which the answer is found; else the given one."""
    distances = [0, *(sign * n for n in range(1, MOST_MOVED + 1) for sign in (-1, 1))]
    return next((start + n for n in distances if _is_at(context, text, start + n)), start)


@dataclasses.dataclass(frozen=True)
class _Object:
    """An object of a file; errors name its place, such as ``data[3].paragraphs[1]``."""

    values: dict[str, Any]
    place: str
    file: str

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Returns a value of type ``kind``, which must exist unless there is a default."""
        value = self.values.get(key, default)
        # In Python, True is an int; in JSON, it is not a number.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        kinds = {str: "text", int: "an integer", bool: "true or false", list: "a list"}
        if key not in self.values:
            raise self.error(f"{self.place} has no {key!r}")
        raise self.error(f"{key!r} of {self.place} is not {kinds[kind]}")

    def items(self, key: str) -> Iterator[_Object]:
        """Yields the objects in a list."""
        above = f"{self.place}." if "[" in self.place else ""
        for index, values in enumerate(self.get(key, list)):
            place = f"{above}{key}[{index}]"
            if not isinstance(values, dict):
                raise self.error(f"{place} is not an object")
            yield _Object(values, place, self.file)

    def error(self, problem: str) -> UserError:
        """An error that says what is wrong with the file."""
        return UserError(
            f"{self.file} is not a SQuAD file: {problem}; correct it or give another file."
        )


def _examples(content: _Object, needs_answers: bool, v2: bool) -> Iterator[tuple[Example, bool]]:
    """Yields all questions, and whether each has an answer or says that it has none."""
    places: dict[str, str] = {}
    number = 0
    for article in content.items("data"):
        title = article.get("title", str, "")
        for paragraph in article.items("paragraphs"):
            context = paragraph.get("context", str)
            for question in paragraph.items("qas"):
                question_id = _id_of(question)
                answers = _answers(question, optional=not needs_answers)
                is_impossible = question.get("is_impossible", bool, False)
                if is_impossible and answers:
                    raise question.error(
                        f"{question.place} ({question_id}) is_impossible but has answers"
                    )
                is_marked = bool(answers) or "is_impossible" in question.values
                has_answer = is_impossible or answers or (v2 and not is_marked)
                if needs_answers and not has_answer:
                    raise question.error(
                        f"{question.place} ({question_id}) has no answer; training needs one, or "
                        "--version_2_with_negative and 'is_impossible'"
                    )
                text = question.get("question", str)
                first = places.setdefault(question_id, question.place)
                if first != question.place:
                    raise question.error(
                        f"{first} and {question.place} have the same id "
                        f"{short_repr(question_id)}; every question needs a unique id"
                    )
                located = tuple(Answer(a.text, _nearest(context, *a)) for a in answers)
                is_moved = located[:1] != answers[:1]
                yield (
                    Example(
                        *(question_id, text, context, title, number, located),
                        is_impossible=is_impossible,
                        is_moved=is_moved,
                    ),
                    is_marked,
                )
            number += 1


def _id_of(question: _Object) -> str:
    """The id as a string; integers are converted, since JSON predictions have string keys."""
    value = question.values.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return question.get("id", str)


def _answers(question: _Object, *, optional: bool) -> tuple[Answer, ...]:
    """The answers as they are given; of an impossible question, no empty ones."""
    if "answers" not in question.values and optional:
        return ()
    answers = tuple(
        Answer(answer.get("text", str), answer.get("answer_start", int))
        for answer in question.items("answers")
    )
    has_text = any(answer.text.strip() for answer in answers)
    return answers if has_text or not question.get("is_impossible", bool, False) else ()
