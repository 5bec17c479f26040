"""Markup in texts: the headings and unknown words of WikiText.

WikiText (Merity et al. 2016) consists of whole articles. ``= Title =`` begins an article,
``= = Section = =`` a section of it, with blank lines around both and between some paragraphs;
``<unk>`` stands in place of every rare word.

With ``--markup=wikitext`` an article is one document, its headings are sentences, and ``<unk>``
becomes the vocabulary's unknown token: all words are kept, each unknown word as one token, so that
perplexities are comparable with published ones.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Callable, ClassVar

from bert_tf.config.declared import Settings, setting

PLAIN, WIKITEXT = "plain", "wikitext"
MARKUPS = (PLAIN, WIKITEXT)
UNKNOWN = "<unk>"

_HEADING = re.compile(r"(=(?: =)*) [^=\s](?:.*[^=\s])? \1")
_TITLE_LINE = re.compile(rb"^[ \t]*= [^=\s][^\n]* =[ \t]*\r?\n", re.MULTILINE)
_UNKNOWN_WORD = re.compile(rf"(?<!\S){UNKNOWN}(?!\S)")


@dataclasses.dataclass(frozen=True)
class MarkupSettings(Settings):
    """The markup of a text."""

    heading: ClassVar[str] = "Text"
    markup: str = setting(
        PLAIN,
        "wikitext: an article is one document, <unk> is one unknown token; plain: text without "
        "markup.",
        choices=MARKUPS,
    )

    @property
    def markup_parameters(self) -> dict[str, str]:
        """The entry in a manifest's parameters; none for plain text, the default."""
        return {} if self.markup == PLAIN else {"markup": self.markup}


def is_heading(line: str) -> bool:
    """Whether a line with normalized white space is a heading of any level."""
    return line.startswith("= ") and _HEADING.fullmatch(line) is not None


def articles(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """Joins documents into articles, each from its title to the next."""
    article: list[str] = []
    for lines in documents:
        for line in lines:
            if article and not line.startswith("= =") and is_heading(line):
                yield article
                article = []
            article.append(line)
    if article:
        yield article


def last_title(content: bytes) -> int:
    """Start of the last title in a part of a file, 0 if there is none."""
    begin = 0
    for found in _TITLE_LINE.finditer(content):
        begin = found.start()
    return begin


def without_unknown_words(text: str) -> str:
    """Text without the words ``<unk>``."""
    return _UNKNOWN_WORD.sub("", text)


def encode_unknown_words(
    encode: Callable[[str], list[int]], unk_id: int
) -> Callable[[str], list[int]]:
    """Wraps ``encode`` so that each word ``<unk>`` becomes one id."""

    def encode_text(text: str) -> list[int]:
        if UNKNOWN not in text:
            return encode(text)
        first, *others = _UNKNOWN_WORD.split(text)
        ids = encode(first)
        for part in others:
            ids = [*ids, unk_id, *encode(part)]
        return ids

    return encode_text
