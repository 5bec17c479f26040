"""The common interface of tokenizers: text to ids and back."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bert_tf.util.errors import UserError, short_repr

# Names of the files in a model directory.
VOCAB_NAME = "vocab.txt"
SPM_NAME = "spm.model"
TOKENIZER_JSON_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
# The files in a model directory of ours that decide the ids of a text.
TOKENIZER_FILES = (VOCAB_NAME, SPM_NAME, TOKENIZER_JSON_NAME, TOKENIZER_CONFIG_NAME)
ADDED_TOKENS_NAME = "added_tokens.json"  # entries that were added to a vocab.txt, with their ids

WORDPIECE, SENTENCEPIECE = "wordpiece", "sentencepiece"
LIBRARY, JAPANESE = "tokenizer.json", "japanese"


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids of the five special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Encoding(NamedTuple):
    """The ids of a text and their positions in it.

    Attributes:
      ids: as returned by :meth:`Tokenizer.encode`.
      starts, ends: the range of characters [start, end) in the text for each id, in non-decreasing
        order. Ids share a character that was split (a Hangul syllable into its letters); the range
        is empty for an id without a character in the text (SentencePiece's leading U+2581).
    """

    ids: list[int]
    starts: list[int]
    ends: list[int]


class Tokenizer(abc.ABC):
    """A vocabulary and the rule that splits text into its entries.

    Attributes:
      kind: which program splits the text: "wordpiece" and "sentencepiece" are this package's and
        SentencePiece's; "tokenizer.json", the library's; "japanese", MeCab and this package's.
      vocab_size: number of entries; ids range from 0 to vocab_size - 1.
      lower_case: whether text is lower-cased first.
      strip_accents: whether it loses its accents; None if exactly when it is lower-cased, or if the
        kind does not know the question.
      vocab_digest: SHA-256 of the bytes of the vocabulary file, or of rules and entries.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
    """

    kind: str

    def __init__(
        self,
        tokens: Sequence[str],
        lower_case: bool,
        strip_accents: bool | None = None,
        *,
        special: SpecialIds,
        vocab_digest: str,
    ):
        self._tokens = tuple(tokens)
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        self.vocab_size = len(self._tokens)
        self.lower_case = lower_case
        self.strip_accents = None if strip_accents == lower_case else strip_accents
        self.vocab_digest = vocab_digest
        self.pad_id = special.pad
        self.unk_id = special.unk
        self.cls_id = special.cls
        self.sep_id = special.sep
        self.mask_id = special.mask
        self.special_ids = frozenset(dataclasses.astuple(special))

    @property
    def strips_accents(self) -> bool:
        """Whether text loses its accents, for the kinds that know the question."""
        return self.lower_case if self.strip_accents is None else self.strip_accents

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""

    @abc.abstractmethod
    def encode_with_offsets(self, text: str) -> Encoding:
        """Like :meth:`encode`, with the range of ``text`` that each id represents."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Readable text for ids; special tokens appear by name."""

    @abc.abstractmethod
    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """False for each id that continues the preceding word, True for all others."""

    def tokenize(self, text: str) -> list[str]:
        """The vocabulary entries of a text."""
        return self.convert_ids_to_tokens(self.encode(text))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """The ids of entries; raises UserError if an entry is not in the vocabulary."""
        try:
            return [self._ids[token] for token in tokens]
        except KeyError as error:
            raise UserError(f"{short_repr(error.args[0])} is not in the vocabulary.") from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The entries with these ids; raises UserError if an id is outside the vocabulary."""
        tokens = []
        for index in ids:
            if not 0 <= index < self.vocab_size:
                raise UserError(
                    f"id {index} is not in the vocabulary of {self.vocab_size} entries."
                )
            tokens.append(self._tokens[index])
        return tokens
