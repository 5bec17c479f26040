"""Chooses questions about a module's objects and returns them as SQuAD paragraphs."""

from __future__ import annotations

import collections
import hashlib
from typing import Any, NamedTuple

from tools.demo.documented_objects import DocumentedObject
from tools.demo.question_templates import Statement

_MAX_QUESTIONS_PER_CONTEXT = 3
_MAX_CONTEXTS_PER_DOCUMENT = 12
_MAX_ALIKE = 5  # questions of a kind with the same subject and answer: "name: The name of it"


class Document(NamedTuple):
    """A module's objects, each with the statements that can be asked for."""

    module: str
    objects: list[tuple[DocumentedObject, list[Statement]]]


def draw(seed: int, *texts: str) -> bytes:
    """32 pseudo-random bytes that depend only on the seed and the texts."""
    text = "\0".join((str(seed), *texts))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


class QuestionMaker:
    """Chooses questions so that all kinds are represented.

    Args:
      max_questions: total number of questions to make.
      unanswerable_fraction: share of questions that the context does not answer; above 0, every
        question is marked as answerable or not, as in SQuAD 2.0.
      seed: seed of all choices.

    Attributes:
      kinds: number of questions made so far, by kind.
      num_contexts: number of paragraphs made so far.
    """

    def __init__(self, max_questions: int, *, unanswerable_fraction: float, seed: int):
        self.kinds: collections.Counter[str] = collections.Counter()
        self.num_contexts = 0
        self._max_questions = max_questions
        self._unanswerable_fraction = unanswerable_fraction
        self._seed = seed
        self._alike: collections.Counter[tuple[str, str, str]] = collections.Counter()

    @property
    def num_questions(self) -> int:
        """Total number of questions made so far."""
        return sum(self.kinds.values())

    @property
    def is_done(self) -> bool:
        """Whether enough questions have been made."""
        return self.num_questions == self._max_questions

    def paragraphs(self, document: Document) -> list[dict[str, Any]]:
        """A document's paragraphs in SQuAD's format, each with at least one question."""
        objects = sorted(document.objects, key=lambda pair: draw(self._seed, pair[0].context))
        paragraphs = []
        for documented, statements in objects[:_MAX_CONTEXTS_PER_DOCUMENT]:
            questions = self._answerable(documented, statements)
            questions += self._unanswerable(documented, document)
            if questions:
                self.num_contexts += 1
                paragraphs.append({"context": documented.context, "qas": questions})
        return paragraphs

    def _answerable(
        self, documented: DocumentedObject, statements: list[Statement]
    ) -> list[dict[str, Any]]:
        """Questions for the statements whose kinds are the rarest so far."""
        questions: list[dict[str, Any]] = []
        for statement in sorted(statements, key=lambda s: self.kinds[s.template.kind]):
            answer = documented.context[statement.answer.start : statement.answer.end]
            alike = statement.template.kind, statement.subject, answer
            if len(questions) == _MAX_QUESTIONS_PER_CONTEXT or self.is_done:
                break
            if self._alike[alike] < _MAX_ALIKE:
                self._alike[alike] += 1
                self.kinds[statement.template.kind] += 1
                answers = [{"text": answer, "answer_start": statement.answer.start}]
                questions.append(self._question(documented, statement, answers))
        return questions

    def _unanswerable(
        self, documented: DocumentedObject, document: Document
    ) -> list[dict[str, Any]]:
        """Questions for statements about other objects of the module, not mentioned here."""
        context = documented.context
        missing = self._unanswerable_fraction * self.num_questions - self.kinds["unanswerable"]
        if missing < 1:
            return []
        candidates = [
            statement
            for other, statements in document.objects
            if other is not documented
            for statement in statements
            if not statement.is_mentioned(context)
        ]
        candidates.sort(key=lambda s: draw(self._seed, context, s.template.kind, s.subject))
        questions: dict[str, dict[str, Any]] = {}
        for statement in candidates[: min(int(missing), _MAX_QUESTIONS_PER_CONTEXT)]:
            question = self._question(documented, statement, [])
            if question["id"] not in questions and not self.is_done:
                self.kinds["unanswerable"] += 1
                questions[question["id"]] = question
        return list(questions.values())

    def _question(
        self,
        documented: DocumentedObject,
        statement: Statement,
        answers: list[dict[str, Any]],
    ) -> dict[str, Any]:
        kind, subject = statement.template.kind, statement.subject
        digest = draw(self._seed, documented.context, kind, subject)
        question = {
            "id": digest.hex()[:24],
            "question": statement.question(documented.name, phrasing=digest[-1]),
            "answers": answers,
        }
        if self._unanswerable_fraction:
            question["is_impossible"] = not answers
        return question
