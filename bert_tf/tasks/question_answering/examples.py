"""Reads SQuAD files, v1.1 and v2.0, and validates all that is used of them.

Format (Rajpurkar et al. 2016, 2018): ``{"version", "data": [{"title", "paragraphs": [{"context",
"qas": [{"id", "question", "answers": [{"text", "answer_start"}], "is_impossible"}]}]}]}``, where
``is_impossible`` only exists in v2.0. Some files give impossible questions an answer of empty text,
others leave the key out and have an empty list of answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json, require_file

# Maximum distance in characters between an answer and its answer_start: in files whose texts were
# cleaned after annotation, offsets are off by a few characters.
MOST_MOVED = 3


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
    """

    question_id: str
    question: str
    context: str
    title: str
    paragraph: int
    answers: tuple[Answer, ...]
    is_impossible: bool


@dataclasses.dataclass(frozen=True)
class SquadFile:
    """All questions of a file, in order.

    Attributes:
      path: the file.
      examples: at least one.
      unusable: ids of questions whose first answer is not within ``MOST_MOVED`` characters of its
        offset in the context.
      moved: ids of questions whose first answer was within that distance; its offset is corrected.
      first_of: number of questions in the file if ``examples`` are only the first; else None.
      by_characters: whether answers are scored by characters, for languages without blanks.
    """

    path: Path
    examples: tuple[Example, ...]
    unusable: tuple[str, ...]
    moved: tuple[str, ...] = ()
    first_of: int | None = None
    by_characters: bool = False

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
        examples = self.examples[:count]
        kept = {example.question_id for example in examples}
        return dataclasses.replace(
            self,
            examples=examples,
            unusable=tuple(filter(kept.__contains__, self.unusable)),
            moved=tuple(filter(kept.__contains__, self.moved)),
            first_of=len(self.examples),
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
    reader = _Reader(path, flag, needs_answers=needs_answers, v2=version_2_with_negative)
    content = reader.load()
    examples = tuple(reader.examples(content))
    if not examples:
        raise UserError(f"--{flag}: {path} has no questions; give a SQuAD file.")
    if needs_answers and len(reader.unmarked) == len(examples):
        raise UserError(f"--{flag}: no question of {path} has an answer; give a file with answers.")
    if version_2_with_negative and len(reader.unmarked) < len(examples):
        examples = tuple(
            dataclasses.replace(
                e, is_impossible=e.is_impossible or e.question_id in reader.unmarked
            )
            for e in examples
        )
    squad = SquadFile(
        path=path,
        examples=examples,
        unusable=tuple(
            e.question_id for e in examples if e.answers and not _is_at(e.context, *e.answers[0])
        ),
        moved=tuple(reader.moved),
    )
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
class _Reader:
    """Reads the contents of a file; errors name the place, such as ``data[3].paragraphs[1]``.

    ``moved`` collects ids of questions whose first answer was found close to its offset,
    ``unmarked`` those of questions without answers that do not say whether they are impossible.
    """

    path: Path
    flag: str
    needs_answers: bool
    v2: bool
    moved: list[str] = dataclasses.field(default_factory=list)
    unmarked: set[str] = dataclasses.field(default_factory=set)

    def load(self) -> dict[str, Any]:
        """Loads the whole file; validates only its outermost structure."""
        content = read_json(self.path, what=f"--{self.flag}")
        if not isinstance(content, dict):
            raise self._error("it is not an object with 'data'")
        return content

    def examples(self, content: dict[str, Any]) -> Iterator[Example]:
        """Yields all questions."""
        places: dict[str, str] = {}
        paragraph_number = 0
        for article, article_place in self._items(content, "data", ""):
            title = self._value(article, "title", str, article_place, default="")
            for paragraph, place in self._items(article, "paragraphs", article_place):
                context = self._value(paragraph, "context", str, place)
                for question, question_place in self._items(paragraph, "qas", place):
                    example = self._example(
                        question, question_place, context, title, paragraph_number
                    )
                    first = places.setdefault(example.question_id, question_place)
                    if first != question_place:
                        raise self._error(
                            f"{first} and {question_place} have the same id "
                            f"{short_repr(example.question_id)}; every question needs a unique id"
                        )
                    yield example
                paragraph_number += 1

    def _example(
        self, question: dict[str, Any], place: str, context: str, title: str, paragraph: int
    ) -> Example:
        question_id = self._question_id(question, place)
        is_impossible = self._value(question, "is_impossible", bool, place, default=False)
        answers = self._answers(question, place)
        if is_impossible and not any(answer.text.strip() for answer in answers):
            answers = ()
        located = tuple(Answer(text, _nearest(context, text, start)) for text, start in answers)
        if located[:1] != answers[:1]:
            self.moved.append(question_id)
        if is_impossible and answers:
            raise self._error(f"{place} ({question_id}) is_impossible but has answers")
        is_unmarked = not answers and "is_impossible" not in question
        if is_unmarked:
            self.unmarked.add(question_id)
        if self.needs_answers and not (is_impossible or answers or (is_unmarked and self.v2)):
            raise self._error(
                f"{place} ({question_id}) has no answer; training needs one, or "
                "--version_2_with_negative and 'is_impossible'"
            )
        text = self._value(question, "question", str, place)
        return Example(question_id, text, context, title, paragraph, located, is_impossible)

    def _question_id(self, question: dict[str, Any], place: str) -> str:
        """The id as a string; integers are converted, since JSON predictions have string keys."""
        value = question.get("id")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self._value(question, "id", str, place)

    def _answers(self, question: dict[str, Any], place: str) -> tuple[Answer, ...]:
        if "answers" not in question and not self.needs_answers:
            return ()
        return tuple(
            Answer(
                self._value(answer, "text", str, answer_place),
                self._value(answer, "answer_start", int, answer_place),
            )
            for answer, answer_place in self._items(question, "answers", place)
        )

    def _items(
        self, parent: dict[str, Any], key: str, place: str
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """Yields the objects in a list, each with its place."""
        values = self._value(parent, key, list, place)
        for index, value in enumerate(values):
            item_place = f"{place}.{key}[{index}]" if place else f"{key}[{index}]"
            if not isinstance(value, dict):
                raise self._error(f"{item_place} is not an object")
            yield value, item_place

    def _value(
        self, parent: dict[str, Any], key: str, kind: type, place: str, default: Any = None
    ) -> Any:
        """Returns a value of type ``kind``, which must exist unless there is a default."""
        value = parent.get(key, default)
        # In Python, True is an int; in JSON, it is not a number.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        kinds = {str: "text", int: "an integer", bool: "true or false", list: "a list"}
        where = place or "the file"
        if key not in parent:
            raise self._error(f"{where} has no {key!r}")
        raise self._error(f"{key!r} of {where} is not {kinds[kind]}")

    def _error(self, problem: str) -> UserError:
        return UserError(
            f"--{self.flag}: {self.path} is not a SQuAD file: {problem}; "
            "correct it or give another file."
        )
