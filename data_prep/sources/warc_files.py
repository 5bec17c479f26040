"""Reads the plain text in web archives (WARC, ISO 28500), such as Common Crawl's; needs warcio.

A document is the text of a record: of type ``conversion``, of which Common Crawl's WET files
consist, or of a resource or a server's response whose content is text/plain. What other records
hold, web pages in HTML above all, is not text; they are counted.
"""

from __future__ import annotations

import codecs
import collections
import io
import itertools
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from bert_tf.util.errors import UserError, first_line
from data_prep.sources.compressed_streams import (
    GZIP,
    ZLIB,
    CompressedStreams,
    DamagedStreamError,
)
from data_prep.sources.plain_text_files import paragraph_blocks
from data_prep.sources.source_text import reduced
from data_prep.text.documents import UTF_8, Decoder, split_lines

MAGIC = b"WARC/"
HTML, OTHER = "html_records", "other_records"
TOO_LONG, TRUNCATED, UNDECODABLE = "too_long_records", "truncated_records", "undecodable_records"
LONGEST_TEXT_BYTES = 64 << 20
_LONGEST_HEADER_BYTES = 1 << 20
_SKIPPED_AT_ONCE = 1 << 20
_VERSION = "1.8.1"
_TEXT_TYPE, _HTML_TYPES = "text/plain", ("text/html", "application/xhtml+xml")
_HTTP_TYPE = "application/http"
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s\"';]+)", re.IGNORECASE)
# Python codecs that are not charsets of pages; some of them take quadratic time.
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape")
_DIGITS = 18  # of the length of a record that is shorter than 10^18 bytes
_CODINGS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": ZLIB}


class WarcText(NamedTuple):
    """A record with plain text.

    Attributes:
      where: its number and the file, for messages.
      content: as it was sent.
      encoding: of its text.
      is_chunked, coding: the ``Transfer-Encoding`` and ``Content-Encoding`` of a response.
      is_truncated: the crawler stopped reading before its end.
      is_extracted: from a page, so that no line is wrapped.
    """

    where: str
    content: bytes
    encoding: str
    is_chunked: bool
    coding: str
    is_truncated: bool
    is_extracted: bool

    @property
    def size(self) -> int:
        """Bytes that were read for it."""
        return len(self.content)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of the document; none, but a count, if its content cannot be decoded."""
        content = self._decoded_content()
        if content is None:
            decode.counts[UNDECODABLE] += 1
            return
        if self.is_truncated:
            content = _without_cut_character(content, self.encoding)
        text = decode(content, self.where, self.encoding).removeprefix("\ufeff")
        if self.is_extracted:
            yield reduced(split_lines(text))
        else:
            yield list(itertools.chain.from_iterable(paragraph_blocks(text)))

    def _decoded_content(self) -> bytes | None:
        """Without the codings of a response; None if that fails or becomes too long."""
        content = self.content
        if self.is_chunked:
            from warcio.bufferedreaders import ChunkedDataReader

            # Content without chunks, which some crawlers keep under such a header, stays as it is.
            content = ChunkedDataReader(io.BytesIO(content)).read()
        if not self.coding:
            return content
        if self.coding not in _CODINGS:
            return None
        streams = CompressedStreams(io.BytesIO(content), _CODINGS[self.coding])
        blocks, size = [], 0
        try:
            while size <= LONGEST_TEXT_BYTES and (block := streams.read(_SKIPPED_AT_ONCE)):
                blocks.append(block)
                size += len(block)
        except DamagedStreamError:
            if not self.is_truncated:
                return None
        return b"".join(blocks) if size <= LONGEST_TEXT_BYTES else None


class _Content(NamedTuple):
    """What headers say of a record's content: media type, charset and codings."""

    media: str
    charset: str
    is_chunked: bool = False
    coding: str = ""


_NOTHING = _Content("", "")


def import_warcio() -> None:
    """Raises UserError if warcio is not installed."""
    try:
        import warcio  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"WARC files need the package warcio, which cannot be used here ({first_line(error)}); "
            f"run: pip install warcio=={_VERSION}"
        ) from error


def read_warc(
    stream: IO[bytes], name: str, totals: collections.Counter[str], *, encoding: str
) -> Iterator[WarcText]:
    """The records with plain text.

    Args:
      stream: the archive, uncompressed.
      name: of the file, for messages.
      totals: counts the records that are left out, and those that the crawler truncated.
      encoding: of text whose charset is unknown.

    Raises:
      UserError: the archive is damaged, or has pages in HTML and no text.
    """
    counts: collections.Counter[str] = collections.Counter()
    otherwise = _encoding_of(encoding, UTF_8)
    number = found = 0
    while line := _next_line(stream):
        number += 1
        where = f"record {number} of {name}"
        headers, length = _read_headers(line, stream, where)
        kind = (headers.get_header("WARC-Type") or "").strip().lower()
        head = _read_exactly(stream, min(length, _LONGEST_HEADER_BYTES), where)
        rest = length - len(head)
        content, body = _content_of(kind, headers, head)
        is_text = content.media == _TEXT_TYPE
        if not is_text or length > LONGEST_TEXT_BYTES:
            _skip(stream, rest, where)
            counts[TOO_LONG if is_text else HTML if content.media in _HTML_TYPES else OTHER] += 1
            continue
        body += _read_exactly(stream, rest, where)
        found += 1
        is_truncated = bool(headers.get_header("WARC-Truncated"))
        counts[TRUNCATED] += is_truncated
        yield WarcText(
            where,
            body,
            _encoding_of(content.charset, otherwise),
            content.is_chunked,
            content.coding,
            is_truncated,
            kind == "conversion",
        )
    totals.update(counts)
    if counts[HTML] and not found:
        raise UserError(
            f"--input_file: {name} has web pages in HTML ({counts[HTML]:,} records), but no plain "
            "text; give the WET files of the crawl (.warc.wet.gz), which have the text of its "
            "pages, or extract the text first, for example by trafilatura, and give it as JSON "
            "lines."
        )


def _next_line(stream: IO[bytes]) -> bytes:
    """The next line that is not blank, or its beginning; empty at the end."""
    while (line := stream.readline(_LONGEST_HEADER_BYTES)).isspace():
        pass
    return line


def _read_headers(line: bytes, stream: IO[bytes], where: str) -> tuple[Any, int]:
    """The headers of a record, of which ``line`` is the first, and the length of its content."""
    from warcio.recordloader import ArcWarcRecordLoader
    from warcio.statusandheaders import StatusAndHeadersParser, StatusAndHeadersParserException

    lines = _HeaderLines(stream)
    try:
        headers = StatusAndHeadersParser(ArcWarcRecordLoader.WARC_TYPES).parse(lines, line)
    except StatusAndHeadersParserException:
        raise UserError(
            f"--input_file: {where} begins with {line[:40]!r} instead of WARC/1.0 or WARC/1.1; "
            "the file is damaged, or a Content-Length before it is wrong; download it again."
        ) from None
    if lines.are_too_long:
        raise UserError(
            f"--input_file: the header of {where} is longer than {_LONGEST_HEADER_BYTES >> 20} "
            "MiB, so the file is damaged; download it again."
        )
    length = (headers.get_header("Content-Length") or "").strip()
    if not (length.isascii() and length.isdigit() and len(length) <= _DIGITS):
        problem = f"the Content-Length {length[:40]!r}" if length else "no Content-Length"
        raise UserError(
            f"--input_file: {where} has {problem}, so its end is not known; download the file "
            "again, or leave it out."
        )
    return headers, int(length)


class _HeaderLines:
    """The lines of a header, which end early if it is too long."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._left = _LONGEST_HEADER_BYTES

    @property
    def are_too_long(self) -> bool:
        return self._left <= 0

    def readline(self) -> bytes:
        line = self._stream.readline(self._left)
        self._left -= len(line)
        return line


def _content_of(kind: str, headers: Any, head: bytes) -> tuple[_Content, bytes]:
    """What a record has, and what of its beginning is not the header of a response."""
    media, charset = _media_type(headers)
    if kind in ("conversion", "resource"):
        return _Content(media, charset), head
    if kind == "response" and media == _HTTP_TYPE:
        return _response(head)
    return _NOTHING, b""


def _response(head: bytes) -> tuple[_Content, bytes]:
    """As above, for a response; nothing if it is not the resource that was asked for."""
    from warcio.recordloader import ArcWarcRecordLoader
    from warcio.statusandheaders import StatusAndHeadersParser

    lines = io.BytesIO(head)
    try:
        http = StatusAndHeadersParser(ArcWarcRecordLoader.HTTP_TYPES, verify=False).parse(lines)
    except EOFError:
        return _NOTHING, b""
    if not http.get_statuscode().startswith("2"):
        return _NOTHING, b""
    is_chunked = (http.get_header("Transfer-Encoding") or "").strip().lower() == "chunked"
    coding = (http.get_header("Content-Encoding") or "").strip().lower()
    found = _Content(*_media_type(http), is_chunked, "" if coding == "identity" else coding)
    return found, lines.read()


def _media_type(headers: Any) -> tuple[str, str]:
    """Media type and charset; empty where they are not given."""
    media, _, parameters = (headers.get_header("Content-Type") or "").partition(";")
    charset = _CHARSET.search(parameters)
    return media.strip().lower(), charset[1] if charset else ""


def _encoding_of(charset: str, otherwise: str) -> str:
    """The name of a charset's codec; ``otherwise`` if there is none."""
    try:
        "".encode(charset)
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return otherwise
    return otherwise if name in _NO_CHARSETS else name


def _without_cut_character(content: bytes, encoding: str) -> bytes:
    """Without the bytes of a character whose others are missing at the end."""
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        return content[: error.start] if error.end == len(content) else content
    return content


def _read_exactly(stream: IO[bytes], size: int, where: str) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise UserError(
            f"--input_file: {where} is longer than what is left of the file, which was not "
            "downloaded completely; download it again."
        )
    return content


def _skip(stream: IO[bytes], size: int, where: str) -> None:
    while size:
        size -= len(_read_exactly(stream, min(size, _SKIPPED_AT_ONCE), where))
