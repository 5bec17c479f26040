"""Makes cloze questions about a text: a smoke test for users without a SQuAD file.

    python -m tools.demo.questions --input_file=corpus --output_dir=questions --num_questions=5000

A context is a few consecutive sentences of a document. The question is a piece of one of them, in
which a phrase of one to three words is replaced by ``_``; the answer is that phrase, which occurs
once in the context. Writes ``train.json`` and ``dev.json`` in SQuAD's format (v1.1); each document
goes into one of them. The same text and seed give the same bytes. Blank lines in the text separate
documents.

Finding the piece in the context gives the answer, so comparing strings suffices. A score therefore
shows how well a model has learnt to align two texts, but neither understanding nor performance on
SQuAD.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_lines, write_json
from bert_tf.util.options import Interval
from bert_tf.util.versions import maker
from data_prep.stages.settings import FileSettings, output_parameters
from data_prep.stages.stage import define_settings, find_text_files, run_main

STAGE = "demo_questions"
TRAIN_NAME, DEV_NAME = "train.json", "dev.json"
GAP = "_"

_DEV_EVERY = 10  # documents
_WORDS_AROUND_GAP = 6  # on either side; a longer question would not fit small models
_SENTENCE = re.compile(r".+?[.!?](?=\s+[^\sa-z]|\s*$)")
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
# Words with which no phrase begins or ends, so that answers are mostly names of things.
_FUNCTION_WORDS = {
    "a", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "each", "for",
    "from", "had", "has", "have", "he", "her", "his", "if", "in", "into", "is", "it", "its",
    "may", "more", "must", "no", "not", "of", "on", "only", "or", "other", "our", "she", "should",
    "so", "some", "such", "than", "that", "the", "their", "them", "then", "there", "these",
    "they", "this", "those", "to", "too", "was", "we", "were", "what", "when", "where", "which",
    "while", "who", "will", "with", "would", "you", "your",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class QuestionRules(declared.Settings):
    """Which questions are made."""

    heading: ClassVar[str] = "Questions"
    num_questions: int = setting(
        5000,
        "Questions in both files together; fewer if the text is too short.",
        bounds=Interval(2),
    )
    max_context_words: int = setting(
        80,
        "Maximum number of words of a context.",
        bounds=Interval(2 * _WORDS_AROUND_GAP + 1),
        advice="a question has as many",
    )
    random_seed: int = setting(12345, "Seed of the choice of sentences and phrases.")


@dataclasses.dataclass(frozen=True)
class Settings(QuestionRules, FileSettings):
    """The settings of the stage."""


def run(settings: Settings) -> Path:
    """Makes the questions; returns the directory of train.json and dev.json."""
    inputs = find_text_files(settings.input_file)
    parameters = output_parameters(settings)
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=inputs,
        build=functools.partial(_build, settings, inputs),
        made_by=maker(1),
    )


def _build(settings: Settings, inputs: list[Path], directory: Path) -> Built:
    parts: dict[str, list[dict[str, Any]]] = {TRAIN_NAME: [], DEV_NAME: []}
    counts, left, used = dict.fromkeys(parts, 0), settings.num_questions, set()
    turns = itertools.cycle([DEV_NAME] + [TRAIN_NAME] * (_DEV_EVERY - 1))
    lines = itertools.chain.from_iterable(read_lines(p, flag="input_file") for p in inputs)
    for number, document in enumerate(documents(lines)):
        if chosen := list(itertools.islice(paragraphs(document, settings, used), left)):
            name = next(turns)
            parts[name].append({"title": f"document {number}", "paragraphs": chosen})
            counts[name] += len(chosen)
            left -= len(chosen)
        if not left:
            break
    if not counts[TRAIN_NAME]:
        raise UserError(
            f"--input_file: {settings.input_file} has sentences for {sum(counts.values())} "
            "questions; give two documents or more, with blank lines between them."
        )
    for name, data in parts.items():
        write_json(directory / name, {"version": "1.1", "data": data})
    return Built(counts, {"documents": sum(map(len, parts.values()))})


def documents(lines: Iterable[str]) -> Iterator[str]:
    """Joins the lines between blank ones."""
    for is_text, group in itertools.groupby(lines, key=lambda line: bool(line.strip())):
        if is_text:
            yield " ".join(" ".join(group).split())


def paragraphs(document: str, settings: Settings, used: set[str]) -> Iterator[dict[str, Any]]:
    """A document's contexts in SQuAD's format, each with its question.

    ``used`` contains the ids of earlier questions: contexts that occur again are left out.
    """
    for context in contexts(document, settings.max_context_words):
        question = cloze(context, settings.random_seed)
        if question is not None and question["id"] not in used:
            used.add(question["id"])
            yield {"context": context, "qas": [question]}


def contexts(document: str, max_words: int) -> Iterator[str]:
    """Consecutive sentences, at least two, with at most ``max_words`` words in total."""
    held: list[str] = []
    for sentence in [match[0].strip() for match in _SENTENCE.finditer(document)]:
        if sum(len(text.split()) for text in [*held, sentence]) > max_words:
            if len(held) > 1:
                yield " ".join(held)
            held = []
        held.append(sentence)
    if len(held) > 1:
        yield " ".join(held)


def cloze(context: str, seed: int) -> dict[str, Any] | None:
    """A sentence of a context with a gap, as SQuAD's question; None if none is suitable."""
    candidates = [
        (sentence, phrase)
        for sentence in _SENTENCE.finditer(context)
        if len(sentence[0].split()) > _WORDS_AROUND_GAP and GAP not in sentence[0]
        for phrase in _phrases(context, sentence)
    ]
    if not candidates:
        return None
    digest = hashlib.sha256(f"{seed}\0{context}".encode()).hexdigest()
    sentence, (start, end) = candidates[int(digest, 16) % len(candidates)]
    before = context[sentence.start() : start].split()[-_WORDS_AROUND_GAP:]
    after = context[end : sentence.end()].split()[:_WORDS_AROUND_GAP]
    return {
        "id": digest[:24],
        "question": " ".join([*before, GAP, *after]),
        "answers": [{"text": context[start:end], "answer_start": start}],
    }


def _phrases(context: str, sentence: re.Match[str]) -> Iterator[tuple[int, int]]:
    """The bounds of a sentence's phrases that occur once in its context."""
    words = list(_WORD.finditer(context, sentence.start(), sentence.end()))
    for length in (1, 2, 3):
        for first, last in zip(words[1:], words[length:]):
            start, end = first.start(), last.end()
            text = context[start:end]
            ends = {first[0].lower(), last[0].lower()}
            if (
                not ends & _FUNCTION_WORDS
                and re.fullmatch(r"[\w -]+", text)
                and context.lower().count(text.lower()) == 1
            ):
                yield start, end


def define_flags() -> None:
    """Defines the flags of ``python -m tools.demo.questions``."""
    define_settings(
        Settings,
        input_file="Text files, globs or directories.",
        output_dir="Directory for train.json and dev.json.",
    )


def main() -> None:
    """Runs the stage from its flags."""
    run_main(define_flags, lambda values: run(from_flags(Settings, values)))


if __name__ == "__main__":
    main()
