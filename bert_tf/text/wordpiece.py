"""WordPiece tokenization with exactly the ids of google-research/bert's FullTokenizer.

Implemented here because no library produces the same ids: Hugging Face's tokenizers drop
private-use and unassigned characters and give up on words of more than 100 characters instead of
200, and the fast one lower-cases character by character (no final sigma); tensorflow-text, too,
differs in a few tokens per million. A cache of words makes this fast, since most words of a text
occur repeatedly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Generic, TypeVar

from bert_tf.text.basic import AlignedWord, BasicTokenizer, is_simple
from bert_tf.text.tokenizer import Encoding, SpecialIds, Tokenizer
from bert_tf.text.vocabulary import find_special_ids, read_vocab_file
from bert_tf.util.digest import digest_of_file

Value = TypeVar("Value")

MAX_CHARS_PER_WORD = 200  # longer words become [UNK]; google's default

# Limit of each word cache. The two caches of encode take about 40 MB when full of English, and 220
# MB for the worst possible text (64 wide characters per word, each a piece).
CACHED_WORDS = 1 << 17
_CACHED_WORD_CHARS = 64

# str.split treats these as white space, but google's cleaning drops them, which joins words.
_JOINING = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_CHUNK = re.compile(rf"(?:\S|{_JOINING.pattern})+")


class WordPieceTokenizer(Tokenizer):
    """Greedy longest-match-first tokenizer that marks pieces inside a word with ``##``.

    Attributes:
      basic: splits text into words.
    """

    kind = "wordpiece"

    def __init__(
        self,
        entries: Sequence[str],
        basic: BasicTokenizer,
        *,
        special: SpecialIds,
        vocab_digest: str,
    ):
        casing = basic.lower_case, basic.strip_accents
        super().__init__(entries, *casing, special=special, vocab_digest=vocab_digest)
        self._continues = [entry.startswith("##") for entry in entries]
        self._inner = {entry[2:]: index for entry, index in self._ids.items() if entry[:2] == "##"}
        self._longest = max(map(len, entries))
        self.basic = basic
        self._ids_of_word = _WordCache(self._encode_word)  # for words of BasicTokenizer
        self._ids_of_chunk = _WordCache(self._encode_chunk)  # for text between white space
        self._encoding_of_chunk = _WordCache(self._align_chunk)  # with offsets within the chunk

    @classmethod
    def from_file(
        cls, path: Path, *, lower_case: bool, strip_accents: bool | None = None
    ) -> WordPieceTokenizer:
        """Reads a vocab.txt; raises UserError if it is malformed."""
        entries = read_vocab_file(path)
        return cls(
            entries,
            BasicTokenizer(lower_case=lower_case, strip_accents=strip_accents),
            special=find_special_ids(entries, path=path),
            vocab_digest=digest_of_file(path),
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""
        if is_simple(text):
            parts = map(self._ids_of_word.__getitem__, self.basic.words(text))
        else:  # words are slower to find, so a second cache is worth its memory
            if _JOINING.search(text):
                text = _JOINING.sub("", text)
            parts = map(self._ids_of_chunk.__getitem__, text.split())
        return list(itertools.chain.from_iterable(parts))

    def encode_with_offsets(self, text: str) -> Encoding:
        """Like :meth:`encode`, with the range of ``text`` that each id represents."""
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for match in _CHUNK.finditer(text):
            base = match.start()
            chunk_ids, chunk_starts, chunk_ends = self._encoding_of_chunk[match.group()]
            ids += chunk_ids
            starts += [base + start for start in chunk_starts]
            ends += [base + end for end in chunk_ends]
        return Encoding(ids, starts, ends)

    def decode(self, ids: Sequence[int]) -> str:
        """The entries, with spaces between words; the text's own spacing and case are lost."""
        return " ".join(self.convert_ids_to_tokens(ids)).replace(" ##", "")

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """False for each ``##`` entry."""
        continues = self._continues
        return [not continues[index] for index in ids]

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        if chunk.isascii() and chunk.isalnum():  # a shortcut for most chunks
            return self._ids_of_word[chunk.lower() if self.lower_case else chunk]
        words = self.basic.words(chunk)
        return tuple(itertools.chain.from_iterable(map(self._ids_of_word.__getitem__, words)))

    def _align_chunk(self, chunk: str) -> Encoding:
        encoding = Encoding([], [], [])
        for word in self.basic.aligned_words(chunk):
            ids = self._ids_of_word[word.text]
            bounds = self._piece_bounds(word, ids)
            encoding.ids.extend(ids)
            encoding.starts.extend(word.starts[first] for first in bounds[:-1])
            encoding.ends.extend(word.ends[behind - 1] for behind in bounds[1:])
        return encoding

    def _piece_bounds(self, word: AlignedWord, ids: Sequence[int]) -> list[int]:
        """The start of each piece of a word, and the word's end; an [UNK] word is one piece."""
        lengths = [len(self._tokens[index]) for index in ids[:-1]]
        inner = [lengths[0], *(length - len("##") for length in lengths[1:])] if lengths else []
        return [0, *itertools.accumulate(inner), len(word.text)]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_CHARS_PER_WORD:
            return (self.unk_id,)
        pieces: list[int] = []
        table, start = self._ids, 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = table.get(word[start:end])
                if piece is not None:
                    break
            else:
                return (self.unk_id,)
            pieces.append(piece)
            table, start = self._inner, end
        return tuple(pieces)


class _WordCache(dict, Generic[Value]):
    """Maps words to their encoding, computed on first use; cleared when full."""

    def __init__(self, encode: Callable[[str], Value]):
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> Value:
        value = self._encode(word)
        if len(word) <= _CACHED_WORD_CHARS:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = value
        return value
