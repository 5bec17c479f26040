"""How many tokens of a text its vocabulary does not know, and the pieces of text behind them.

A vocabulary of another language or casing turns words into [UNK], from which nothing is learned
and nothing can be predicted.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Sequence

from bert_tf.text.tokenizer import Encoding, Tokenizer
from bert_tf.util.console import say, warn
from bert_tf.util.errors import UserError, short_repr

MOST_UNKNOWN = 0.01  # a larger share is worth a sentence
MOST_USABLE = 0.5  # a larger one is a mistake
# Of fewer tokens, an unknown one is a large share.
LEAST_TOKENS = 50
SHOWN_PIECES = 5

# For a hint on single texts: a share of fewer unknown tokens may be chance; after so many tokens
# the texts are as they should.
_LEAST_UNKNOWN, _COUNTED_TOKENS = 10, 100_000

# Finding pieces costs as much as tokenizing, so only some are looked at and kept.
_PIECES_AT_ONCE = 256
_KEPT_PIECES = 1000


@dataclasses.dataclass
class UnknownTokens:
    """The unknown tokens of a text.

    Attributes:
      pieces: what some of these stand for in the text, and how often.
      known_lowered: how many of these pieces would be known in lower case.
    """

    tokens: int = 0
    unknown: int = 0
    pieces: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    known_lowered: int = 0

    @property
    def share(self) -> float:
        """The fraction of the tokens that is unknown."""
        return self.unknown / max(1, self.tokens)

    def add(self, other: UnknownTokens) -> None:
        """Adds the counts of another part; of very many different pieces, the rare ones go."""
        self.tokens += other.tokens
        self.unknown += other.unknown
        self.known_lowered += other.known_lowered
        self.pieces.update(other.pieces)
        if len(self.pieces) > 2 * _KEPT_PIECES:
            self.pieces = collections.Counter(dict(self.pieces.most_common(_KEPT_PIECES)))

    @property
    def remark(self) -> str:
        """A sentence about an unusual share; empty for a usual one, and for a short text."""
        if self.tokens < LEAST_TOKENS or self.share <= MOST_UNKNOWN:
            return ""
        return (
            f"{self.share:.1%} of the {self.tokens:,} tokens are unknown to the vocabulary "
            f"([UNK]){self._most_frequent()}; {self._reason()}"
        )

    def require_known(self, source: str) -> None:
        """Raises UserError if most tokens of ``source``, the name of a text, are unknown."""
        if self.remark and self.share > MOST_USABLE:
            raise UserError(f"{source}: {self.remark}.")

    def say(self, source: str) -> None:
        """Warns of an unusual share."""
        if self.remark:
            warn(f"{source}: {self.remark}", part="text")

    def _most_frequent(self) -> str:
        seen = sum(self.pieces.values())
        if not seen:
            return ""
        among = "" if seen == self.unknown else f" (among {seen:,} that were looked at)"
        common = self.pieces.most_common(SHOWN_PIECES)
        shown = ", ".join(f"{short_repr(piece)} ({count:,})" for piece, count in common)
        return f", most often{among} {shown}"

    def _reason(self) -> str:
        if 2 * self.known_lowered > sum(self.pieces.values()):
            return "it has them in lower case: the text needs do_lower_case=true"
        return (
            "use a vocabulary that was made for this language and casing, and the weights that "
            "belong to it"
        )


class CountingTokenizer(Tokenizer):
    """Another tokenizer that counts the unknown tokens among those it makes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        vars(self).update(vars(tokenizer))
        self.kind = tokenizer.kind
        self._counted, self._encode_counted = tokenizer, tokenizer.encode
        self._found = UnknownTokens()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""
        ids = self._encode_counted(text)
        self._found.tokens += len(ids)
        if self.unk_id in ids:
            self._add_unknown(text, ids, None)
        return ids

    def encode_with_offsets(self, text: str) -> Encoding:
        """Like :meth:`encode`, with the range of ``text`` that each id represents."""
        encoding = self._counted.encode_with_offsets(text)
        self._found.tokens += len(encoding.ids)
        if self.unk_id in encoding.ids:
            self._add_unknown(text, encoding.ids, encoding)
        return encoding

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text for ids."""
        return self._counted.decode(ids)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """False for each id that continues the preceding word, True for all others."""
        return self._counted.word_starts(ids)

    def take(self) -> UnknownTokens:
        """What was counted since the last call."""
        found, self._found = self._found, UnknownTokens()
        return found

    def _add_unknown(self, text: str, ids: Sequence[int], encoding: Encoding | None) -> None:
        found = self._found
        found.unknown += ids.count(self.unk_id)
        if sum(found.pieces.values()) >= _PIECES_AT_ONCE:
            return
        for token, start, end in zip(*(encoding or self._counted.encode_with_offsets(text))):
            if token == self.unk_id:
                piece = text[start:end]
                found.pieces[piece] += 1
                found.known_lowered += self._is_known_lowered(piece)

    def _is_known_lowered(self, piece: str) -> bool:
        if self.lower_case or piece.islower():
            return False
        return self.unk_id not in self._counted.encode(piece.lower())


class HintingTokenizer(CountingTokenizer):
    """Warns once if many tokens of its first texts are unknown; ``source`` names the model.

    It raises no error, since it may be given any text, one at a time.
    """

    def __init__(self, tokenizer: Tokenizer, source: object) -> None:
        super().__init__(tokenizer)
        self._source, self._is_done = source, False

    def _add_unknown(self, text: str, ids: Sequence[int], encoding: Encoding | None) -> None:
        if self._is_done:
            return
        super()._add_unknown(text, ids, encoding)
        found = self._found
        is_hint = found.unknown >= _LEAST_UNKNOWN and bool(found.remark)
        if is_hint:
            say(f"warning: {self._source}: of its texts, {found.remark}", stream=sys.stderr)
        self._is_done = is_hint or found.tokens >= _COUNTED_TOKENS
