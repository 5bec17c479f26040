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

What a character becomes has the same length by itself as in a text, so each character of the
result has an origin.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
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
_WORD = re.compile(r"\S+")


def is_simple(text: str) -> bool:
    """Whether a text consists of printable ASCII characters, for which there are shortcuts."""
    return text.isascii() and text.isprintable()


class AlignedWord(NamedTuple):
    """A word, with the range [start, end) of the original text for each of its characters."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


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
        self._alone = _CharacterTable(self._spaced)

    def words(self, text: str) -> list[str]:
        """The words of a text; none is empty."""
        if is_simple(text):
            return _ASCII_WORD.findall(text.lower() if self.lower_case else text)
        return self._spaced(text).split()

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
        starts: list[int] = []
        ends: list[int] = []
        letter = slice(0)  # what accents that follow belong to
        for index, char in enumerate(text):
            made, first = self._alone[ord(char)], self._first[ord(char)]
            if made:
                starts += [index] * len(made)
                ends += [index + 1] * len(made)
                # A splitting character keeps its accents, an ideograph has none.
                num_letters = 0 if first.endswith(" ") else len(made) if made[0] == " " else 1
                letter = slice(len(ends) - num_letters, None)
            elif first:
                ends[letter] = [index + 1] * len(ends[letter])
        return [
            AlignedWord(match[0], starts[slice(*match.span())], ends[slice(*match.span())])
            for match in _WORD.finditer(self._spaced(text))
        ]

    def _spaced(self, text: str) -> str:
        """The words of a text, with white space around them."""
        if not (self.lower_case or self.strip_accents):
            return text.translate(self._only)
        text = text.translate(self._first)
        if self.lower_case:
            text = text.lower()
        if self.strip_accents and not text.isascii():
            text = unicodedata.normalize("NFD", text)
        return text.translate(self._second)


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
