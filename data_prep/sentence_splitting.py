"""Where sentences end, by the rules of a language.

The rules are those of sentencex, which knows the abbreviations of several dozen languages ("Mr."
ends no sentence) and the marks that end a sentence in others ("。", "।"). A language that it does
not know gets general rules.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import sentencex

# Characters that are split at a time: within quotation marks that are never closed, the time that
# sentencex takes grows with the square of the length.
_WINDOW = 1 << 14


def splitter_version() -> str:
    """The library's name and release, which decide where sentences end."""
    return f"sentencex {importlib.metadata.version('sentencex')}"


def split_sentences(paragraph: str, language: str) -> Iterator[str]:
    """The sentences of a paragraph, one after the other; together they are the whole text.

    ``paragraph`` must have no white space but blanks. Each sentence has the blanks behind it.
    """
    start = 0
    while len(paragraph) - start > _WINDOW:
        found = _segment(paragraph[start : start + _WINDOW], language)
        complete = found[:-1] or found  # the last one may go on
        yield from complete
        start += sum(map(len, complete))
    yield from _segment(paragraph[start:], language)


def _segment(text: str, language: str) -> list[str]:
    """The sentences of a short text."""
    starts, position = [], 0
    for sentence in map(str.strip, sentencex.segment(language, text)):
        if sentence:
            position = text.index(sentence, position)
            starts.append(position)
            position += len(sentence)
    bounds = [0, *starts[1:], len(text)]  # releases differ in the blanks that they keep
    return [text[start:end] for start, end in zip(bounds, bounds[1:])]
