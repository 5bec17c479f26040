"""Reads the texts of a file: one text, or a pair separated by `` ||| ``, per line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file, sha256_of_file

PAIR_SEPARATOR = " ||| "

# Bytes of English text per token, to divide the work before texts are tokenized.
_BYTES_PER_TOKEN = 4
_NEWLINE = ord("\n")


@dataclasses.dataclass(frozen=True)
class Texts:
    """The lines of a file.

    Attributes:
      content: the file's bytes.
      bounds: int64 [N + 1], where each line begins, and where the last one ends.
      sha256: digest of the content.
    """

    content: np.ndarray
    bounds: np.ndarray
    sha256: str

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
    texts = Texts(content, np.concatenate([[0], ends]), sha256_of_file(path))
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
