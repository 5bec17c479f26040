"""transformers' BertJapaneseTokenizer: MeCab splits text into words, and these become pieces.

The ids are those of that class. It has no offsets; here each character is followed through
Unicode's compatibility form (NFKC).
"""

from __future__ import annotations

import importlib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.text.library_format import USUAL_MAX_CHARS, WORDPIECE_PREFIX, Json
from bert_tf.text.tokenizer import JAPANESE, Encoding, SpecialIds, Tokenizer
from bert_tf.text.tokenizer_rules import Document
from bert_tf.text.vocabulary import SPECIAL_TOKENS, find_special_ids
from bert_tf.util.errors import UserError, first_line

_INSTALL = "pip install fugashi ipadic unidic-lite (the extra japanese)"


class _Followed(NamedTuple):
    """A text with the range [start, end) of the original text for each of its characters."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def part(self, places: slice) -> _Followed:
        return _Followed(self.text[places], self.starts[places], self.ends[places])

    def normalized(self) -> _Followed:
        """The text in Unicode's compatibility form."""
        if unicodedata.is_normalized("NFKC", self.text):
            return self
        chars: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        for first, behind in _clusters(self.text):
            normal = unicodedata.normalize("NFKC", self.text[first:behind])
            chars.append(normal)
            starts += [self.starts[first]] * len(normal)
            ends += [self.ends[behind - 1]] * len(normal)
        return _Followed("".join(chars), starts, ends)


class JapaneseTokenizer(Tokenizer):
    """MeCab's words, as WordPiece entries or single characters."""

    kind = JAPANESE

    def __init__(
        self, settings: Json, tagger: Any, *, special: SpecialIds, vocab_digest: str
    ) -> None:
        """``settings`` is a document of the rules, and ``tagger`` MeCab with its dictionary."""
        super().__init__(
            settings["entries"],
            special=special,
            lower_case=settings["do_lower_case"],
            vocab_digest=vocab_digest,
        )
        self._tagger = tagger
        self._normalize = settings["mecab_kwargs"]["normalize_text"]
        self._by_character = settings["subword_tokenizer_type"] == "character"
        self._longest = max(map(len, self._tokens))
        self._names = re.compile(f"({'|'.join(map(re.escape, SPECIAL_TOKENS))})")

    @classmethod
    def from_document(cls, document: Document, *, source: Path) -> JapaneseTokenizer:
        """Starts MeCab; raises UserError if it or its dictionary is not installed."""
        settings = document.values
        return cls(
            settings,
            _start_mecab(settings["mecab_kwargs"], source),
            special=find_special_ids(settings["entries"], path=source),
            vocab_digest=document.digest,
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""
        return self.encode_with_offsets(text).ids

    def encode_with_offsets(self, text: str) -> Encoding:
        """Like :meth:`encode`, with the range of ``text`` that each id represents."""
        encoding = Encoding([], [], [])
        base = 0
        for part in self._names.split(text):
            behind = base + len(part)
            if part in SPECIAL_TOKENS:
                found = iter([(self._ids[part], base, behind)])
            else:
                found = self._pieces(self._follow(part, base))
            for index, start, end in found:
                encoding.ids.append(index)
                encoding.starts.append(start)
                encoding.ends.append(end)
            base = behind
        return encoding

    def decode(self, ids: Sequence[int]) -> str:
        """The entries, with spaces between words, as transformers writes them."""
        return " ".join(self.convert_ids_to_tokens(ids)).replace(f" {WORDPIECE_PREFIX}", "")

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """False for each ``##`` entry; single characters do not tell."""
        return [not self._tokens[index].startswith(WORDPIECE_PREFIX) for index in ids]

    def _follow(self, text: str, base: int) -> _Followed:
        if self.lower_case:  # each by itself, so there is no final sigma
            text = "".join(map(_lower_if_single, text))
        places = range(base, base + len(text) + 1)
        followed = _Followed(text, places[:-1], places[1:])
        return followed.normalized() if self._normalize else followed

    def _pieces(self, followed: _Followed) -> Iterator[tuple[int, int, int]]:
        """Each id with the range of the original text that it represents."""
        place = 0
        for found in self._tagger(_text_only(followed.text)):
            surface = found.surface
            place = max(place, followed.text.find(surface, place))
            word = followed.part(slice(place, place + len(surface)))
            place += len(surface)
            if self._by_character:
                word = word.normalized()
            elif surface.isspace():
                continue
            first = 0
            lowered = "".join(map(_lower_if_single, word.text)) if self.lower_case else word.text
            for index, length in self._ids_of_word(lowered):
                yield index, word.starts[first], word.ends[first + length - 1]
                first += length

    def _ids_of_word(self, word: str) -> list[tuple[int, int]]:
        """The ids of a word's pieces, with their lengths."""
        if self._by_character:
            return [(self._ids.get(char, self.unk_id), 1) for char in word]
        found, start = [], 0
        while start < len(word) <= USUAL_MAX_CHARS:
            prefix = WORDPIECE_PREFIX if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                index = self._ids.get(prefix + word[start:end])
                if index is not None:
                    break
            else:
                break
            found.append((index, end - start))
            start = end
        return found if found and start == len(word) else [(self.unk_id, len(word))]


def _lower_if_single(char: str) -> str:
    """In lower case, unless that takes more than one character, which no Japanese text has."""
    lowered = char.lower()
    return lowered if len(lowered) == 1 else char


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Ranges of characters that compatibility forms do not join with those around them."""
    start = 0
    for place in range(1, len(text) + 1):
        if place == len(text) or not _joins(text[start:place], text[place]):
            yield start, place
            start = place


def _joins(before: str, char: str) -> bool:
    normalize = unicodedata.normalize
    apart = normalize("NFKC", before) + normalize("NFKC", char)
    return bool(unicodedata.combining(char)) or normalize("NFKC", before + char) != apart


def _text_only(text: str) -> str:
    """Half a surrogate pair (from JSON) becomes an unknown character, not an error."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _start_mecab(settings: Json, source: Path) -> Any:
    option, dictionary = settings["mecab_option"] or "", settings["mecab_dic"]
    try:
        fugashi = importlib.import_module("fugashi")
        if dictionary is not None:
            directory = importlib.import_module(dictionary).DICDIR
            option = f'-d "{directory}" -r "{os.path.join(directory, "mecabrc")}" {option}'
    except ImportError as error:
        raise UserError(
            f"the tokenizer of {source} splits Japanese text with MeCab ({first_line(error)}); "
            f"{_INSTALL}."
        ) from error
    try:
        return fugashi.GenericTagger(option)
    except RuntimeError as error:
        raise UserError(
            f"MeCab does not start with {option.strip() or 'its own dictionary'} "
            f"({first_line(error)}); {_INSTALL}."
        ) from error
