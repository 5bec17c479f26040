"""Words of a text that a WordPiece vocabulary breaks into pieces, and a vocabulary that has them.

A word of a domain that the vocabulary lacks takes several tokens, each of which means little. The
words that are worth an entry are those whose entries save the most tokens: occurrences times pieces
beyond the first.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.tokenizer import SpecialIds
from bert_tf.text.wordpiece import WordPieceTokenizer
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError

_UNUSED = re.compile(r"\[unused\d+\]")
# Longer words become [UNK] in transformers' tokenizers, and are not words of a language.
_MOST_CHARS = 100


@dataclasses.dataclass(frozen=True)
class NewWord:
    """A word that the vocabulary lacks.

    Attributes:
      word: the word as the tokenizer sees it, lower-cased if the vocabulary is.
      count: its occurrences in the text; 0 without a text.
      pieces: the ids of its pieces, or of [UNK].
    """

    word: str
    count: int
    pieces: tuple[int, ...]

    @property
    def saved(self) -> int:
        """The number of tokens that an entry for the word saves in the text."""
        return self.count * (len(self.pieces) - 1)


@dataclasses.dataclass(frozen=True)
class Extension:
    """A vocabulary with new words.

    Attributes:
      words: the new words, by the id that each has.
      size_before: the number of entries without them; larger ids were appended, others replace an
        [unused] entry.
    """

    entries: tuple[str, ...]
    words: Mapping[int, NewWord]
    size_before: int

    @property
    def num_appended(self) -> int:
        """The number of new words that did not fit into [unused] entries."""
        return len(self.entries) - self.size_before

    def tokenizer(self, before: WordPieceTokenizer) -> WordPieceTokenizer:
        """The tokenizer with the new words; ``before`` is the one without them."""
        special = SpecialIds(
            before.pad_id, before.unk_id, before.cls_id, before.sep_id, before.mask_id
        )
        content = "".join(f"{entry}\n" for entry in self.entries).encode()
        return WordPieceTokenizer(
            self.entries,
            before.basic,
            special=special,
            vocab_digest=digest_of(content),
        )


def extend(
    tokenizer: WordPieceTokenizer, words: Sequence[NewWord], *, use_unused: bool
) -> Extension:
    """The vocabulary with new words, in the places of [unused] entries first, by id."""
    entries = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    unused = [index for index, entry in enumerate(entries) if _UNUSED.fullmatch(entry)]
    places = itertools.chain(unused if use_unused else [], itertools.count(len(entries)))
    placed = dict(zip(places, words))
    extended = {**dict(enumerate(entries)), **{index: new.word for index, new in placed.items()}}
    return Extension(tuple(extended.values()), placed, len(entries))


def count_tokens(counts: Mapping[str, int], tokenizer: WordPieceTokenizer) -> tuple[int, int]:
    """The number of tokens of a text, and of words in it that the vocabulary does not know."""
    total = unknown = 0
    for word, count in counts.items():
        ids = tokenizer.encode(word)
        total += count * len(ids)
        unknown += count * (ids == [tokenizer.unk_id])
    return total, unknown


def count_words(paths: Iterable[Path], basic: BasicTokenizer, *, flag: str) -> dict[str, int]:
    """How often each word occurs in UTF-8 text files, in the order of first occurrence.

    Raises UserError for bytes that are not UTF-8, with the line.
    """
    counts: collections.Counter[str] = collections.Counter()
    for path in paths:
        for line in _lines(path, flag):
            counts.update(basic.words(line))
    return dict(counts)


def _lines(path: Path, flag: str) -> Iterator[str]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"--{flag}: line {number} of {path} is not UTF-8 (byte {error.start} of the "
                    "line); convert the file to UTF-8."
                ) from error


def broken_words(
    counts: Mapping[str, int], tokenizer: WordPieceTokenizer, *, min_count: int
) -> list[NewWord]:
    """The words that break into pieces, those first whose entries save the most tokens.

    Left out are words without a letter, words that occur less than ``min_count`` times, unknown
    words (which save no token) and those of more than 100 characters.
    """
    found = [
        NewWord(word, count, tuple(tokenizer.encode(word)))
        for word, count in counts.items()
        if count >= min_count and len(word) <= _MOST_CHARS and any(map(str.isalpha, word))
    ]
    found = [new for new in found if new.saved and tokenizer.basic.words(new.word) == [new.word]]
    return sorted(found, key=lambda new: (-new.saved, -new.count, new.word))


def own_words(
    lines: Sequence[str], counts: Mapping[str, int], tokenizer: WordPieceTokenizer
) -> tuple[list[NewWord], dict[str, str]]:
    """The words of a user's list that the vocabulary lacks; and the others, with the reason.

    Unknown words are accepted: they begin as [UNK].
    """
    found: dict[str, NewWord] = {}
    refused: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines)):
        words = tokenizer.basic.words(line)
        if len(words) != 1 or len(words[0]) > _MOST_CHARS:
            is_long = len(words) == 1
            refused[line] = "too long" if is_long else "not a single word for this tokenizer"
            continue
        pieces = tuple(tokenizer.encode(words[0]))
        if len(pieces) == 1 and pieces[0] != tokenizer.unk_id:
            refused[line] = "already in the vocabulary"
        else:
            found[words[0]] = NewWord(words[0], counts.get(words[0], 0), pieces)
    return list(found.values()), refused


def choose_words(
    candidates: Sequence[NewWord],
    counts: Mapping[str, int],
    tokenizer: WordPieceTokenizer,
    *,
    own: Sequence[NewWord],
    most: int,
) -> list[NewWord]:
    """The user's own words and the first ``most`` of the candidates that do no harm.

    A new entry is also the first piece of longer words. If the rest of one has no pieces, it would
    become [UNK]; the entry is then left out.
    """
    known = {new.word for new in own}
    left = [new for new in candidates if new.word not in known]
    while True:
        chosen = [*own, *left[:most]]
        harmful = _harmful({new.word for new in left[:most]}, chosen, counts, tokenizer)
        if not harmful:
            return chosen
        left = [new for new in left if new.word not in harmful]


def _harmful(
    removable: set[str],
    chosen: Sequence[NewWord],
    counts: Mapping[str, int],
    tokenizer: WordPieceTokenizer,
) -> set[str]:
    """The chosen words that make a word of the text unknown."""
    extension = extend(tokenizer, chosen, use_unused=False)
    extended, entries = extension.tokenizer(tokenizer), set(extension.entries)
    found = set()
    for word in counts:
        if not any(word[:end] in removable for end in range(1, len(word))):
            continue
        if extended.encode(word) == [tokenizer.unk_id] != tokenizer.encode(word):
            beginnings = (word[:end] for end in range(len(word), 0, -1))
            first_piece = next(beginning for beginning in beginnings if beginning in entries)
            found |= {first_piece} & removable
    return found
