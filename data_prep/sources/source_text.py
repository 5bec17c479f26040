"""What the readers of all sources share: streams in UTF-8, and text as lines of a document."""

from __future__ import annotations

import codecs
import collections
import io
import re
from collections.abc import Iterable
from typing import IO, Any

from bert_tf.util.errors import UserError
from data_prep.sources.containers import Source
from data_prep.text.documents import REPLACED, UTF_8, require_few_nulls

NULLS = "null_characters"

# The longer mark first: that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# After a declaration of XML and comments.
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+)?html[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_TRANSCODED_BYTES = 1 << 16
_SURROGATE = re.compile("[\ud800-\udfff]")
REDUCED_CHARACTERS = 1 << 20


def as_utf8(source: Source, encoding: str) -> IO[bytes]:
    """The stream of a source in UTF-8, without a byte order mark, which overrides ``encoding``.

    Raises UserError, while it is read, for bytes that are not of another encoding; those that are
    not UTF-8 are left to ``documents.Decoder``. Raises it at once if the content cannot be text.
    """
    head = source.head
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    encoding = marked or codecs.lookup(encoding).name
    if encoding == UTF_8:
        require_few_nulls(head, source.name)
        return source.stream
    if encoding == "utf-8-sig":
        source.stream.read(len(codecs.BOM_UTF8))
        return source.stream
    return io.BufferedReader(_Transcoded(source, encoding), _TRANSCODED_BYTES)


def require_no_html(head: bytes, name: object) -> None:
    """Raises UserError for a file that begins like a web page, whose tags are not text."""
    if _HTML.match(head):
        raise UserError(
            f"--input_file: {name} is HTML, whose tags would become part of the text; convert it "
            "to plain text first, for example with pandoc --to=plain."
        )


class _Transcoded(io.RawIOBase):
    """Text of another encoding, in UTF-8."""

    def __init__(self, source: Source, encoding: str):
        self._source = source
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._pending = b""
        self._position = 0
        self._at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending and not self._at_end:
            block = self._source.stream.read(_TRANSCODED_BYTES)
            self._at_end = not block
            try:
                text = self._decoder.decode(block, final=self._at_end)
            except UnicodeError as error:
                raise UserError(
                    f"--input_file: {self._source.name} is not {self._encoding}, after byte "
                    f"{self._position} ({getattr(error, 'reason', error)}); give its --encoding."
                ) from None
            self._position += len(block)
            self._pending = text.encode(UTF_8, "surrogatepass")
        size = min(len(buffer), len(self._pending))
        buffer[:size], self._pending = self._pending[:size], self._pending[size:]
        return size


def reduced(lines: Iterable[str]) -> list[str]:
    """Lines with single blanks as their only white space; without those that have nothing else."""
    return [line for line in map(reduced_line, lines) if line]


def reduced_line(line: str) -> str:
    """A line with single blanks as its only white space."""
    if len(line) <= REDUCED_CHARACTERS:
        return " ".join(line.split())
    # The list of all words would take many times the memory of the line.
    parts, gap = [], ""
    for start in range(0, len(line), REDUCED_CHARACTERS):
        part = line[start : start + REDUCED_CHARACTERS]
        words = " ".join(part.split())
        if words:
            parts += [" " if part[0].isspace() else gap, words]
        gap = " " if part[-1].isspace() else ""
    return "".join(parts).strip()


def encode(documents: list[list[str]], counts: collections.Counter[str]) -> bytes:
    """Documents in UTF-8, a line each, with a blank line after each document.

    What text cannot have is left out (null characters) or replaced (unpaired surrogates), and
    counted.
    """
    text = "".join("\n".join(lines) + "\n\n" for lines in documents)
    if "\0" in text:
        counts[NULLS] += text.count("\0")
        text = text.replace("\0", "")
    try:
        return text.encode(UTF_8)
    except UnicodeEncodeError:
        text, number = _SURROGATE.subn("\ufffd", text)
        counts[REPLACED] += number
        return text.encode(UTF_8)
