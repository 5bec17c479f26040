"""Reads the texts of a file, and makes the sequences that the network reads of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.records.sequences import padded_inputs
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.windows import kept_counts
from bert_tf.util.digest import digest_of_file
from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file

PAIR_SEPARATOR = " ||| "

# Bytes of English text per token, to divide the work before texts are tokenized.
_BYTES_PER_TOKEN = 4
_NEWLINE = ord("\n")


@dataclasses.dataclass(frozen=True)
class Texts:
    """The lines of a file: one text, or a pair separated by `` ||| ``, per line.

    Attributes:
      content: the file's bytes.
      bounds: int64 [N + 1], where each line begins, and where the last one ends.
      digest: digest of the content.
    """

    content: np.ndarray
    bounds: np.ndarray
    digest: str

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def line(self, number: int) -> bytes:
        """The bytes of a line, counted from 0."""
        return self.content[self.bounds[number] : self.bounds[number + 1]].tobytes()

    def parts(self, number: int) -> tuple[str, ...]:
        """The text of a line without white space around it, or both texts of a pair.

        The last separator counts, as in google-research/bert.
        """
        text = self.line(number).decode("utf-8").strip()
        first, separator, second = text.rpartition(PAIR_SEPARATOR)
        return (first, second) if separator else (text,)

    def pieces(self, *, most_tokens: int, max_seq_length: int) -> list[range]:
        """Divides the lines into consecutive pieces of about ``most_tokens`` tokens each.

        A line counts as up to ``max_seq_length`` tokens. The result depends on the lines alone.
        """
        tokens = np.minimum(np.diff(self.bounds) // _BYTES_PER_TOKEN + 2, max_seq_length)
        piece_of = (np.cumsum(tokens) - tokens) // max(most_tokens, max_seq_length)
        starts = [0, *(np.flatnonzero(np.diff(piece_of)) + 1).tolist(), len(self)]
        return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def read_texts(path: Path, *, flag: str, keep_empty: bool = False) -> Texts:
    """Reads a UTF-8 file, whose last line may lack a line end.

    Raises UserError if it is missing, empty or not UTF-8 and, unless ``keep_empty``, for a line
    with nothing but white space; lines are counted from 1.
    """
    path = require_file(path, flag=flag)
    content = np.memmap(path, np.uint8, "r")
    ends = np.flatnonzero(content == _NEWLINE) + 1
    if not len(ends) or ends[-1] < len(content):
        ends = np.append(ends, len(content))
    texts = Texts(content, np.concatenate([[0], ends]), digest_of_file(path))
    for number in range(len(texts)):
        try:
            is_empty = not texts.line(number).decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UserError(
                f"--{flag}: line {number + 1} of {path} is not UTF-8; convert the file."
            ) from error
        if is_empty and not keep_empty:
            raise UserError(
                f"--{flag}: line {number + 1} of {path} is empty; remove it, or give "
                "--keep_empty_lines for the vectors of an empty text."
            )
    return texts


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


@dataclasses.dataclass(frozen=True)
class SequenceMaker:
    """Makes sequences of up to ``max_seq_length`` tokens; ``prompt`` precedes every text."""

    tokenizer: Tokenizer
    max_seq_length: int
    prompt: str = ""
    lower_case: bool = False  # texts before they are tokenized

    def sequence(self, texts: Sequence[str]) -> TokenSequence:
        """``[CLS] text [SEP]`` or, for a pair, ``[CLS] text [SEP] other text [SEP]``.

        Texts that are too long lose their ends, as in google-research/bert. Raises UserError if a
        pair has no room for a token of each text.
        """
        tokenizer, room = self.tokenizer, self.max_seq_length - 1 - len(texts)
        if room < len(texts):
            raise UserError(
                f"--max_seq_length={self.max_seq_length} has no room for a pair of texts; give at "
                "least 5."
            )
        prompted = [f"{self.prompt}{texts[0]}", *texts[1:]]
        parts = [tokenizer.encode(t.lower() if self.lower_case else t) for t in prompted]
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

    def batch(self, sequences: Sequence[TokenSequence], length: int) -> dict[str, np.ndarray]:
        """The network's inputs for sequences, padded to ``length`` tokens: [B, length] each."""
        return padded_inputs(
            [sequence.ids for sequence in sequences],
            length,
            pad_id=self.tokenizer.pad_id,
            segments=[np.arange(len(s.ids)) >= s.first for s in sequences],
        )
