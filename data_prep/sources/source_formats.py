"""The formats of text that are read, and how a file's own is recognised.

``jsonl`` has a document per line, ``json`` a file with one object or a list of them, ``text`` blank
lines between documents, ``documents`` one document a file. What a file has counts, not its name;
only where the content leaves it open, the suffix decides.

Another format is a module with a reader and a row of ``_ROWS``.
"""

from __future__ import annotations

import codecs
import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, ClassVar, NamedTuple, Protocol

from bert_tf.config.declared import AT_LEAST_ONE, Settings, setting
from bert_tf.util.errors import UserError
from bert_tf.util.parquet import import_parquet
from data_prep.sources import (
    json_files,
    mediawiki_dump,
    parquet_files,
    warc_files,
    wikiextractor_files,
)
from data_prep.sources.containers import Source
from data_prep.sources.plain_text_files import read_text
from data_prep.sources.source_text import as_utf8, require_no_html
from data_prep.text.documents import Decoder
from data_prep.text.left_out import template_counts
from data_prep.text.mediawiki_text import Options, plain_text
from data_prep.text.mediawiki_variants import VARIANTS

AUTO, TEXT, DOCUMENTS, PARQUET = "auto", "text", "documents", "parquet"
MEDIAWIKI, JSON_LINES, JSON, WIKIEXTRACTOR = "mediawiki", "jsonl", "json", "wikiextractor"
WARC = "warc"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BINARY = {
    b"%PDF-": "a PDF file",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"ARROW1": "an Arrow file",
    b"\x7fELF": "a program",
}


class Piece(Protocol):
    """A part of a source that a worker process can turn into text by itself."""

    @property
    def size(self) -> int:
        """Bytes or characters that were read for it."""

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of each of its documents."""


class Opened(NamedTuple):
    """A source that is about to be read.

    Attributes:
      source: its stream and name.
      path: of the file, which a Parquet file is read from.
      reading: how.
      totals: counts what is left out.
    """

    source: Source
    path: Path
    reading: Reading
    totals: collections.Counter[str]

    def text(self) -> IO[bytes]:
        """Its stream in UTF-8."""
        return as_utf8(self.source, self.reading.encoding)


class FormatRow(NamedTuple):
    """A format.

    Attributes:
      name: that of ``--format``.
      pieces: reads a source.
      begins: whether the first bytes of a file, without a byte order mark and white space, are
        those of this format.
      suffixes: of files whose content leaves open what they are.
      require: raises UserError if the package that reads it is missing.
      is_read_by_path: a file as it is, so that none inside another file can be read.
      made_by: the packages on whose results its text depends.
    """

    name: str
    pieces: Callable[[Opened], Iterator[Piece]]
    begins: Callable[[bytes], bool] = lambda _: False
    suffixes: tuple[str, ...] = ()
    require: Callable[[], object] = lambda: None
    is_read_by_path: bool = False
    made_by: tuple[str, ...] = ()


class Article(NamedTuple):
    """The markup of a wiki's page."""

    markup: str
    options: Options

    @property
    def size(self) -> int:
        """Characters of markup."""
        return len(self.markup)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """Its paragraphs; counts the templates that are left out."""
        left_out: collections.Counter[str] = collections.Counter()
        yield plain_text(self.markup, self.options, left_out)
        decode.counts.update(template_counts(left_out))


def recognise(source: Source, reading: Reading, *, is_nested: bool) -> str:
    """The format of a source; ``is_nested`` tells that its file is in a directory's directory.

    Raises UserError if it cannot be read, or if it is text and it is not clear what a document is.
    """
    head = source.head
    found = _format_of(head, source.suffix) if reading.format == AUTO else reading.format
    row = _ROWS[found]
    row.require()
    if row.is_read_by_path:
        if not source.is_plain:
            raise UserError(
                f"--input_file: {source.name} is a {found.capitalize()} file inside another file, "
                "where it cannot be read; unpack it first."
            )
    elif what := next((w for magic, w in _BINARY.items() if head.startswith(magic)), None):
        raise UserError(f"--input_file: {source.name} is {what}, not text; leave it out.")
    if found in (TEXT, DOCUMENTS):
        require_no_html(head, source.name)
    if found == TEXT and reading.format == AUTO and (is_nested or source.is_member):
        raise UserError(
            f"--input_file: {source.name} is plain text; give --format=documents if each file is "
            "one document, or --format=text if blank lines separate documents."
        )
    return found


def _format_of(head: bytes, suffix: str) -> str:
    start = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
    rows = _ROWS.values()
    named = (row for row in rows if suffix in row.suffixes)
    row = next((row for row in rows if row.begins(start)), None) or next(named, None)
    return row.name if row else TEXT


def read_pieces(opened: Opened, found: str) -> Iterator[Piece]:
    """The pieces of a source of a format that was recognised."""
    return _ROWS[found].pieces(opened)


def packages_of(formats: Collection[str | None]) -> list[str]:
    """The packages on whose results the text of files in these formats depends."""
    return [name for row in _ROWS.values() if row.name in formats for name in row.made_by]


def _articles(opened: Opened) -> Iterator[Article]:
    """The articles of a dump; ``totals`` counts the pages that are none."""
    reading = opened.reading
    for site, page in mediawiki_dump.read_pages(opened.source.stream, opened.source.name):
        if page.namespace != mediawiki_dump.ARTICLES:
            opened.totals["other_pages"] += 1
        elif page.is_redirect:
            opened.totals["redirects"] += 1
        else:
            yield Article(
                page.text,
                Options(
                    site.hidden,
                    reading.keep_lists,
                    reading.keep_headings,
                    site.language,
                    reading.variant,
                ),
            )


def _json_lines(opened: Opened) -> Iterator[Piece]:
    reading = opened.reading
    return json_files.read_json_lines(
        opened.text(),
        opened.source.name,
        reading.text_field,
        rows_per_document=reading.rows_per_document,
    )


def _json_file(opened: Opened) -> Iterator[Piece]:
    return json_files.read_json_file(opened.text(), opened.source.name, opened.reading.text_field)


def _parquet(opened: Opened) -> Iterator[Piece]:
    reading = opened.reading
    return parquet_files.read_parquet(
        opened.path, reading.text_field, rows_per_document=reading.rows_per_document
    )


def _text(opened: Opened) -> Iterator[Piece]:
    return read_text(opened.text(), opened.source.name, is_one_document=False)


def _document(opened: Opened) -> Iterator[Piece]:
    return read_text(opened.text(), opened.source.name, is_one_document=True)


def _wikiextractor(opened: Opened) -> Iterator[Piece]:
    return wikiextractor_files.read_wikiextractor(opened.text(), opened.source.name)


def _warc(opened: Opened) -> Iterator[Piece]:
    source, reading = opened.source, opened.reading
    return warc_files.read_warc(
        source.stream, source.name, opened.totals, encoding=reading.encoding
    )


def _begins_dump(start: bytes) -> bool:
    return start.startswith(b"<") and b"<mediawiki" in start[:1024]


# In this order a file is compared with them.
_ROWS = {
    row.name: row
    for row in (
        FormatRow(MEDIAWIKI, _articles, _begins_dump, (".xml",), made_by=("mwparserfromhell",)),
        FormatRow(JSON_LINES, _json_lines, json_files.begins_with_object, (".jsonl", ".ndjson")),
        FormatRow(JSON, _json_file, suffixes=(".json",)),
        FormatRow(
            PARQUET,
            _parquet,
            lambda start: start.startswith(parquet_files.MAGIC),
            require=import_parquet,
            is_read_by_path=True,
        ),
        FormatRow(
            WARC,
            _warc,
            lambda start: start.startswith(warc_files.MAGIC),
            (".warc", ".wet"),
            require=warc_files.import_warcio,
            made_by=("warcio",),
        ),
        FormatRow(TEXT, _text),
        FormatRow(DOCUMENTS, _document),
        FormatRow(WIKIEXTRACTOR, _wikiextractor, lambda s: s.startswith(wikiextractor_files.BEGIN)),
    )
}
FORMATS = (AUTO, *_ROWS)


@dataclasses.dataclass(frozen=True)
class Reading(Settings):
    """How sources are read."""

    heading: ClassVar[str] = "Extraction"
    format: str = setting(
        AUTO,
        "Format of the files; auto recognises each one's. Plain text has blank lines between "
        "documents (text), or a file is one document (documents).",
        choices=FORMATS,
    )
    text_field: str = setting(
        "text", "Field of JSON objects, or column of Parquet files, that has the text."
    )
    rows_per_document: int = setting(
        1,
        "JSON lines, or rows of Parquet, that make one document; more than 1 for collections with "
        "one sentence per row.",
        bounds=AT_LEAST_ONE,
    )
    encoding: str = setting(
        "utf-8",
        "Encoding of text files without a byte order mark, and of records of WARC without charset.",
    )
    keep_lists: bool = setting(False, "Keep the lines of lists in dumps.")
    keep_headings: bool = setting(False, "Keep the headings of sections that have text, in dumps.")
    variant: str = setting(
        "",
        "Which text to take where a wiki has one for each way to write its language, such as zh-tw "
        "or sr-el; by default its first.",
        choices=("", *VARIANTS),
    )

    def contradictions(self) -> Iterator[str]:
        """An encoding that is unknown or not of text."""
        try:
            "".encode(self.encoding)
            codecs.getincrementaldecoder(self.encoding)
        except (LookupError, ValueError):
            yield (
                f"{self.given('encoding')} is not an encoding of text; give one such as utf-16 or "
                "windows-1252."
            )
        yield from super().contradictions()
