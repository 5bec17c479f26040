"""Reads what WikiExtractor writes: ``<doc id=... title=...>``, a title, paragraphs, ``</doc>``."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import IO, NamedTuple

from bert_tf.util.errors import UserError
from data_prep.sources.source_text import reduced
from data_prep.text.documents import Decoder, split_lines

BEGIN, END = b"<doc ", b"</doc>"
_LONGEST_BYTES = 64 << 20


class WikiExtractorDocument(NamedTuple):
    """An article.

    Attributes:
      name: of the file, for messages.
      first_line: number of the line with the mark of its beginning.
      content: the lines between its marks.
    """

    name: str
    first_line: int
    content: bytes

    @property
    def size(self) -> int:
        """Bytes that were read for it."""
        return len(self.content)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """Its paragraphs, without its title, which is the first line."""
        where = f"the article at line {self.first_line} of {self.name}"
        text = decode(self.content, where)
        yield reduced(split_lines(html.unescape(text)))[1:]


def read_wikiextractor(stream: IO[bytes], name: str) -> Iterator[WikiExtractorDocument]:
    """The articles of a stream in UTF-8.

    Raises UserError if the last one has no end, text is outside of articles, or an article is
    longer than 64 MiB.
    """
    lines: list[bytes] | None = None
    number = first = size = 0
    while line := stream.readline(_LONGEST_BYTES):
        number += 1
        if line.startswith(BEGIN) and lines is None:
            lines, first, size = [], number, 0
        elif line.rstrip() == END and lines is not None:
            yield WikiExtractorDocument(name, first, b"".join(lines))
            lines = None
        elif lines is not None:
            lines.append(line)
            size += len(line)
            if size >= _LONGEST_BYTES:
                raise UserError(
                    f"--input_file: the article at line {first} of {name} is longer than "
                    f"{_LONGEST_BYTES >> 20} MiB, so its </doc> may be missing; leave it out."
                )
        elif not line.isspace():
            raise UserError(
                f"--input_file: line {number} of {name} is outside of <doc> and </doc>, so this is "
                "not what WikiExtractor writes; give its --format."
            )
    if lines is not None:
        raise UserError(
            f"--input_file: {name} ends inside the article at line {first}; copy it again."
        )
