"""Reads plain text: with blank lines between documents, or one document a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import IO, NamedTuple

from data_prep.sources.source_text import reduced_line
from data_prep.stages.sentences import join_wrapped_lines
from data_prep.text.documents import (
    CUT_DOCUMENTS,
    Decoder,
    Part,
    between_blank_lines,
    cut_position,
    last_blank_line,
    read_parts,
    split_lines,
)

LONGEST_DOCUMENT_BYTES = 4 << 20  # longer ones are cut: data_prep.sentences cuts at 1 MiB


class TextPiece(NamedTuple):
    """Whole documents, or a part of one that is too long.

    Attributes:
      part: the text in UTF-8; if it is cut, the last document continues in the next piece.
      is_one_document: blank lines are between paragraphs only.
    """

    part: Part
    is_one_document: bool

    @property
    def size(self) -> int:
        """Bytes that were read for it."""
        return len(self.part.content)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of each document; where lines look wrapped, they are joined."""
        blocks = paragraph_blocks(decode(self.part.content, self.part.place))
        decode.counts[CUT_DOCUMENTS] += self.part.is_cut
        if self.is_one_document:
            yield list(itertools.chain.from_iterable(blocks))
        else:
            yield from blocks


def paragraph_blocks(text: str) -> Iterator[list[str]]:
    """The paragraphs between blank lines; where lines look wrapped, they are joined."""
    return map(join_wrapped_lines, between_blank_lines(map(reduced_line, split_lines(text))))


def read_text(stream: IO[bytes], name: str, *, is_one_document: bool) -> Iterator[TextPiece]:
    """The text of a stream of UTF-8; memory is that of the longest document, up to 5 MiB."""
    parts = read_parts(
        stream,
        name,
        border=_nowhere if is_one_document else last_blank_line,
        cut=cut_position,
        most_bytes=LONGEST_DOCUMENT_BYTES,
    )
    is_empty = True
    for part in parts:
        yield TextPiece(part, is_one_document)
        is_empty = False
    if is_empty and is_one_document:
        yield TextPiece(Part(name, 0, b""), is_one_document)


def _nowhere(_: bytes) -> int:
    return 0
