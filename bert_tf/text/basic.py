"""Cuts text into words as google-research/bert's BasicTokenizer does, a whole text at a time.

The rules, for each character and the Unicode version of the running Python:
  1. Drop U+0000, U+FFFD and the categories Cc and Cf, except tab, line feed and carriage return.
  2. Those three and category Zs are blanks. An ideograph (ranges below) is a word by itself.
  3. Uncased: lower-case (a final sigma becomes one), decompose (NFD), drop category Mn.
  4. A punctuation character is a word by itself: ASCII that is neither letter nor digit nor
     control character, and the categories P*.
White space has no part in the context rules of 3 (it is neither cased nor case-ignorable nor a
combining character), which is why whole texts can be treated at once.
"""

from __future__ import annotations

import unicodedata
from typing import Callable

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class BasicTokenizer:
    """Text to words; ``lower_case`` also strips accents."""

    def __init__(self, *, lower_case: bool):
        self._lower_case = lower_case
        if lower_case:
            self._first = _CharacterTable(_clean)
            self._second = _CharacterTable(lambda char: _split(_strip_accent(char)))
        else:
            self._first = _CharacterTable(lambda char: _split(_clean(char)))

    def words(self, text: str) -> list[str]:
        """The words of a text, none of them empty."""
        text = text.translate(self._first)
        if self._lower_case:
            text = text.lower()
            if not text.isascii():
                text = unicodedata.normalize("NFD", text)
            text = text.translate(self._second)
        return text.split()


class _CharacterTable(dict):
    """For str.translate: code point to replacement, worked out when a character is first met."""

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
    if any(low <= ord(char) <= high for low, high in _IDEOGRAPHS):
        return f" {char} "
    return char


def _strip_accent(char: str) -> str:
    """The end of rule 3."""
    return "" if unicodedata.category(char) == "Mn" else char


def _split(text: str) -> str:
    """Rule 4, for one character or what has become of it."""
    if len(text) != 1:
        return text
    is_ascii_symbol = text.isascii() and text.isprintable() and not text.isalnum() and text != " "
    if is_ascii_symbol or unicodedata.category(text)[0] == "P":
        return f" {text} "
    return text
