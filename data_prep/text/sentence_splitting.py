"""Where sentences end, by the rules of a language.

The rules are those of sentencex, which knows the abbreviations of several dozen languages ("Mr."
ends no sentence) and the marks that end a sentence in others ("。", "।"), corrected by those of
data_prep.text.sentence_rules. A language that neither knows gets general rules.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools

import sentencex

from data_prep.text.sentence_rules import RULES_VERSION, rules_for

# Characters that are split at a time: within quotation marks that are never closed, the time that
# sentencex takes grows with the square of the length.
WINDOW_CHARACTERS = 1 << 14


def splitter_version(language: str) -> str:
    """The versions of the library and of the rules, which decide where sentences end."""
    library = f"sentencex {importlib.metadata.version('sentencex')}"
    return f"{library}, rules {RULES_VERSION}" if rules_for(language) else library


def split_sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of a paragraph, one after the other; together they are the whole text.

    ``paragraph`` must have no white space but blanks. Each sentence has the blanks behind it.
    """
    sentences: list[str] = []
    start, begun = 0, ""
    while len(paragraph) - start > WINDOW_CHARACTERS:
        found = _segment(paragraph[start : start + WINDOW_CHARACTERS], language)
        complete = found[:-1]  # the last one may go on
        if complete:
            sentences += [begun + complete[0], *complete[1:]]
            begun = ""
        else:
            begun += found[0]
            complete = found
        start += sum(map(len, complete))
    first, *others = _segment(paragraph[start:], language) or [""]
    if begun or first:
        sentences += [begun + first, *others]
    return sentences


def _segment(text: str, language: str) -> list[str]:
    """The sentences of a short text."""
    rules = rules_for(language)
    if rules:
        starts = rules.starts(text, functools.partial(_starts, rules.read_as or language))
    else:
        starts = _starts(language, text)
    bounds = [0, *starts, len(text)]
    return [text[start:end] for start, end in zip(bounds, bounds[1:])]


def _starts(language: str, text: str) -> list[int]:
    """Where the sentences of a text but the first begin, according to sentencex."""
    sentences = sentencex.segment(language, text)
    ends = list(itertools.accumulate(map(len, sentences)))
    if ends and ends[-1] == len(text):
        return ends[:-1]
    starts, position = [], 0  # a release that leaves out blanks
    for sentence in map(str.strip, sentences):
        if sentence:
            position = text.index(sentence, position)
            starts.append(position)
            position += len(sentence)
    return starts[1:]
