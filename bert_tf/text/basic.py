"""Splits text into words like google-research/bert's BasicTokenizer, a whole text at a time.

The rules for each character, based on the running Python's version of Unicode:
  1. Drop U+0000, U+FFFD and the categories Cc and Cf, except tab, line feed and carriage return.
  2. Those three and category Zs are white space. An ideograph (ranges below) is a word by itself.
  3. Lower-case (including final sigma), if asked for; then decompose (NFD) and drop category Mn, if
     accents are to be stripped, which google's rules do exactly when lower-casing.
  4. A punctuation character is a word by itself: ASCII characters other than letters, digits and
     control characters, and the categories P*.
White space does not affect the context rules of 3 (it is neither cased nor case-ignorable nor a
combining character), so whole texts can be processed at once.

The rules are implemented twice: for whole strings, which is fast, and for characters that keep
track of their origin.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Callable, NamedTuple

IDEOGRAPHS = (  # ranges of code points
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

_ASCII_WORD = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9 ]")


def is_simple(text: str) -> bool:
    """Whether a text consists of printable ASCII characters, for which there are shortcuts."""
    return text.isascii() and text.isprintable()


class AlignedWord(NamedTuple):
    """A word, with the range [start, end) of the original text for each of its characters."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


class _Aligned(NamedTuple):
    """A character with the range of the original text from which it comes."""

    char: str
    start: int
    end: int


class BasicTokenizer:
    """Splits text into words.

    Attributes:
      lower_case: whether words are lower-cased.
      strip_accents: whether they lose their accents.
    """

    def __init__(self, *, lower_case: bool, strip_accents: bool | None = None):
        """By default, accents are stripped exactly when lower-casing."""
        self.lower_case = lower_case
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self._first = _CharacterTable(_clean)
        self._second = _CharacterTable(
            (lambda char: _split(_strip_accent(char))) if self.strip_accents else _split
        )
        self._only = _CharacterTable(lambda char: _split(_clean(char)))  # if nothing is between

    def words(self, text: str) -> list[str]:
        """The words of a text; none is empty."""
        if is_simple(text):
            return _ASCII_WORD.findall(text.lower() if self.lower_case else text)
        if not (self.lower_case or self.strip_accents):
            return text.translate(self._only).split()
        text = text.translate(self._first)
        if self.lower_case:
            text = text.lower()
        if self.strip_accents and not text.isascii():
            text = unicodedata.normalize("NFD", text)
        return text.translate(self._second).split()

    def aligned_words(self, text: str) -> list[AlignedWord]:
        """Like :meth:`words`, with origins; a dropped accent belongs to its letter."""
        if is_simple(text):
            lowered = text.lower() if self.lower_case else text
            return [
                AlignedWord(
                    match[0], range(*match.span()), range(match.start() + 1, match.end() + 1)
                )
                for match in _ASCII_WORD.finditer(lowered)
            ]
        chars = _translate(
            (_Aligned(char, index, index + 1) for index, char in enumerate(text)), self._first
        )
        if self.lower_case:
            chars = list(_lower(chars))
        if self.strip_accents:
            chars = _join_accents(_decompose(chars))
        chars = _translate(chars, self._second)
        words = []
        for is_blank, run in itertools.groupby(chars, key=lambda aligned: aligned.char.isspace()):
            if not is_blank:
                letters, starts, ends = zip(*run)
                words.append(AlignedWord("".join(letters), starts, ends))
        return words


class _CharacterTable(dict):
    """For str.translate: maps code points to replacements, which are computed on first use."""

    def __init__(self, replace: Callable[[str], str]):
        super().__init__()
        self._replace = replace

    def __missing__(self, code_point: int) -> str:
        replacement = self[code_point] = self._replace(chr(code_point))
        return replacement


def _clean(char: str) -> str:
    """Rules 1 and 2."""
    if char in "\t\n\r":
        return " "
    category = unicodedata.category(char)
    if category in ("Cc", "Cf") or char == "\ufffd":
        return ""
    if category == "Zs":
        return " "
    if any(low <= ord(char) <= high for low, high in IDEOGRAPHS):
        return f" {char} "
    return char


def _strip_accent(char: str) -> str:
    """The last part of rule 3."""
    return "" if unicodedata.category(char) == "Mn" else char


def _split(text: str) -> str:
    """Rule 4, for a character or its replacement."""
    if len(text) != 1:
        return text
    is_ascii_symbol = text.isascii() and text.isprintable() and not text.isalnum() and text != " "
    if is_ascii_symbol or unicodedata.category(text)[0] == "P":
        return f" {text} "
    return text


def _translate(chars: Iterable[_Aligned], table: _CharacterTable) -> list[_Aligned]:
    """str.translate."""
    return [
        _Aligned(replaced, start, end)
        for char, start, end in chars
        for replaced in table[ord(char)]
    ]


def _lower(chars: list[_Aligned]) -> Iterator[_Aligned]:
    """str.lower; only final sigma depends on its neighbours, and its length does not change."""
    lowered = iter("".join(aligned.char for aligned in chars).lower())
    for char, start, end in chars:
        for small in itertools.islice(lowered, len(char.lower())):
            yield _Aligned(small, start, end)


def _decompose(chars: Iterable[_Aligned]) -> Iterator[_Aligned]:
    """NFD: decomposes each character, then sorts runs of combining ones by combining class."""
    parts = (
        _Aligned(part, start, end)
        for char, start, end in chars
        for part in unicodedata.normalize("NFD", char)
    )
    for combines, group in itertools.groupby(parts, key=lambda part: _combining_class(part) > 0):
        run = list(group)
        ordered = sorted(run, key=_combining_class) if combines else run
        if ordered != run:  # all get the whole range, or ranges would be out of order
            ordered = [_Aligned(part.char, run[0].start, run[-1].end) for part in ordered]
        yield from ordered


def _combining_class(aligned: _Aligned) -> int:
    return unicodedata.combining(aligned.char)


def _join_accents(chars: Iterable[_Aligned]) -> list[_Aligned]:
    """Drops accents and extends the range of the preceding character to include them."""
    kept: list[_Aligned] = []
    for aligned in chars:
        if _strip_accent(aligned.char):
            kept.append(aligned)
        elif kept:
            kept[-1] = kept[-1]._replace(end=aligned.end)
    return kept
