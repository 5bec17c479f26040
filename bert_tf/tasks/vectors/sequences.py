"""Texts and pairs of texts as the sequences that the network reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.records.sequences import padded_inputs
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.truncation import kept_counts
from bert_tf.util.errors import UserError


class TokenSequence(NamedTuple):
    """A text or a pair, between [CLS] and [SEP].

    Attributes:
      ids: int32 [tokens].
      first: number of tokens of the first segment, with [CLS] and [SEP].
      is_cut: whether there was no room for all of its tokens.
    """

    ids: np.ndarray
    first: int
    is_cut: bool


class SequenceMaker:
    """Makes sequences of up to ``max_seq_length`` tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_seq_length: int,
        *,
        prompt: str = "",
        lower_case: bool = False,
    ) -> None:
        """``prompt`` precedes every text; texts may be lower-cased before they are tokenized."""
        self._tokenizer = tokenizer
        self._max_seq_length = max_seq_length
        self._prompt = prompt
        self._lower_case = lower_case

    def sequence(self, texts: Sequence[str]) -> TokenSequence:
        """``[CLS] text [SEP]`` or, for a pair, ``[CLS] text [SEP] other text [SEP]``.

        Texts that are too long lose their ends, as in google-research/bert. Raises UserError if a
        pair has no room for a token of each text.
        """
        tokenizer, room = self._tokenizer, self._max_seq_length - 1 - len(texts)
        if room < len(texts):
            raise UserError(
                f"--max_seq_length={self._max_seq_length} has no room for a pair of texts; give at "
                "least 5."
            )
        parts = [tokenizer.encode(text) for text in self._read(texts)]
        counts = [len(part) for part in parts]
        # A second text without tokens is left out, as in google-research/bert.
        if len(parts) == 2 and not counts[1]:
            return self.sequence(texts[:1])
        is_cut = sum(counts) > room
        kept = kept_counts(counts, room) if is_cut else counts
        ids = [tokenizer.cls_id, *parts[0][: kept[0]], tokenizer.sep_id]
        first = len(ids)
        for part, count in zip(parts[1:], kept[1:]):
            ids += [*part[:count], tokenizer.sep_id]
        return TokenSequence(np.array(ids, np.int32), first, is_cut)

    def _read(self, texts: Sequence[str]) -> list[str]:
        """The texts with the prompt, in the casing in which they are tokenized."""
        found = [f"{self._prompt}{texts[0]}", *texts[1:]]
        return [text.lower() for text in found] if self._lower_case else found

    def batch(self, sequences: Sequence[TokenSequence], length: int) -> dict[str, np.ndarray]:
        """The network's inputs for sequences, padded to ``length`` tokens: [B, length] each."""
        return padded_inputs(
            [sequence.ids for sequence in sequences],
            length,
            pad_id=self._tokenizer.pad_id,
            segments=[np.arange(len(s.ids)) >= s.first for s in sequences],
        )
