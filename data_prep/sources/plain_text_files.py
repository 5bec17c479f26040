"""Reads plain text: with blank lines between documents, or one document a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import IO, NamedTuple

from data_prep.sources.source_text import Decoder, reduced
from data_prep.stages.sentences import join_wrapped_lines
from data_prep.text.documents import CUT_DOCUMENTS, cut_position, last_blank_line, split_lines

LONGEST_DOCUMENT_BYTES = 4 << 20  # longer ones are cut: data_prep.sentences cuts at 1 MiB
_READ_BYTES = 1 << 20


class TextPiece(NamedTuple):
    """Whole documents, or a part of one that is too long.

    Attributes:
      name: of the file, for messages.
      offset: of the content in it.
      content: UTF-8.
      is_one_document: blank lines are between paragraphs only.
      is_cut: the last document goes on in the next piece.
    """

    name: str
    offset: int
    content: bytes
    is_one_document: bool
    is_cut: bool

    @property
    def size(self) -> int:
        """Bytes that were read for it."""
        return len(self.content)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of each document; where lines look wrapped, they are joined."""
        where = f"{self.name}, from byte {self.offset} on,"
        lines = split_lines(decode(self.content, where))
        decode.counts[CUT_DOCUMENTS] += self.is_cut
        groups = itertools.groupby(lines, key=lambda line: bool(line) and not line.isspace())
        blocks = (reduced(group) for is_text, group in groups if is_text)
        joined = (join_wrapped_lines(block) for block in blocks if block)
        if self.is_one_document:
            yield list(itertools.chain.from_iterable(joined))
        else:
            yield from joined


def read_text(stream: IO[bytes], name: str, *, is_one_document: bool) -> Iterator[TextPiece]:
    """The text of a stream of UTF-8; memory is that of the longest document, up to 5 MiB."""
    pending, offset = b"", 0
    while block := stream.read(_READ_BYTES):
        pending += block
        cut, is_cut = 0, False
        if not is_one_document:
            cut = last_blank_line(pending)
        if not cut and len(pending) >= LONGEST_DOCUMENT_BYTES:
            cut, is_cut = cut_position(pending), True
        if cut:
            yield TextPiece(name, offset, pending[:cut], is_one_document, is_cut)
            pending, offset = pending[cut:], offset + cut
    if pending or (is_one_document and not offset):
        yield TextPiece(name, offset, pending, is_one_document, False)
