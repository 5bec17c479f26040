"""The formats of text that are read, and how a file's own is recognised.

``jsonl`` has a document a line, ``json`` a file with one object or a list of them, ``text`` blank
lines between documents, ``documents`` one document a file. What a file has counts, not its name;
only where the content leaves it open, the suffix decides.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_tf.util.errors import UserError
from data_prep.sources import json_files, mediawiki_dump, parquet_files, wikiextractor_files
from data_prep.sources.containers import Source
from data_prep.sources.plain_text_files import read_text
from data_prep.sources.source_text import Decoder, as_utf8, require_no_html
from data_prep.text.mediawiki_text import Options, plain_text

AUTO, TEXT, DOCUMENTS, PARQUET = "auto", "text", "documents", "parquet"
MEDIAWIKI, JSON_LINES, JSON, WIKIEXTRACTOR = "mediawiki", "jsonl", "json", "wikiextractor"
FORMATS = (AUTO, MEDIAWIKI, JSON_LINES, JSON, PARQUET, TEXT, DOCUMENTS, WIKIEXTRACTOR)
DEFAULT_TEXT_FIELD = "text"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BY_SUFFIX = {".xml": MEDIAWIKI, ".jsonl": JSON_LINES, ".ndjson": JSON_LINES, ".json": JSON}
_BINARY = {
    b"%PDF-": "a PDF file",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"ARROW1": "an Arrow file",
    b"\x7fELF": "a program",
}


class Reading(NamedTuple):
    """How sources are read.

    Attributes:
      format: one of FORMATS; AUTO recognises each file's.
      text_field: of JSON and Parquet.
      rows_per_document: lines of JSON, or rows of Parquet, that make one document.
      encoding: of text without a byte order mark.
      lists, headings: what is kept of a wiki's pages.
    """

    format: str = AUTO
    text_field: str = DEFAULT_TEXT_FIELD
    rows_per_document: int = 1
    encoding: str = "utf-8"
    lists: bool = False
    headings: bool = False


class Article(NamedTuple):
    """The markup of a wiki's page."""

    markup: str
    options: Options

    @property
    def size(self) -> int:
        """Characters of markup."""
        return len(self.markup)

    def documents(self, _: Decoder) -> Iterator[list[str]]:
        """Its paragraphs."""
        yield plain_text(self.markup, self.options)


def recognise(source: Source, reading: Reading, *, is_nested: bool) -> str:
    """The format of a source; ``is_nested`` tells that its file is in a directory's directory.

    Raises UserError if it cannot be read, or if it is text and it is not clear what a document is.
    """
    head = source.head
    if reading.format != AUTO:
        found = reading.format
    elif head.startswith(parquet_files.MAGIC):
        found = PARQUET
    else:
        found = _format_of_text(head, source.suffix)
    if found == PARQUET:
        parquet_files.import_parquet()
        if not source.is_plain:
            raise UserError(
                f"--input_file: {source.name} is a Parquet file inside another file, where it "
                "cannot be read; unpack it first."
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


def _format_of_text(head: bytes, suffix: str) -> str:
    start = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if b"<mediawiki" in start[:1024] and start.startswith(b"<"):
        return MEDIAWIKI
    if start.startswith(wikiextractor_files.BEGIN):
        return WIKIEXTRACTOR
    if json_files.begins_with_object(start):
        return JSON_LINES
    return _BY_SUFFIX.get(suffix, TEXT)


def read_pieces(
    source: Source, path: Path, reading: Reading, found: str, totals: collections.Counter[str]
) -> Iterator[object]:
    """The pieces of a source of a format that was recognised.

    A piece has ``size`` and, for a worker process, ``documents(decoder)``.
    """
    rows, name = reading.rows_per_document, source.name
    if found == PARQUET:
        yield from parquet_files.read_parquet(path, reading.text_field, rows_per_document=rows)
    elif found == MEDIAWIKI:
        yield from _articles(source, reading, totals)
    else:
        stream = as_utf8(source, reading.encoding)
        if found == JSON_LINES:
            yield from json_files.read_json_lines(
                stream, name, reading.text_field, rows_per_document=rows
            )
        elif found == JSON:
            yield from json_files.read_json_file(stream, name, reading.text_field)
        elif found == WIKIEXTRACTOR:
            yield from wikiextractor_files.read_wikiextractor(stream, name)
        else:
            yield from read_text(stream, name, is_one_document=found == DOCUMENTS)


def _articles(
    source: Source, reading: Reading, totals: collections.Counter[str]
) -> Iterator[Article]:
    """The articles of a dump; ``totals`` counts the pages that are none."""
    for site, page in mediawiki_dump.read_pages(source.stream, source.name):
        if page.namespace != mediawiki_dump.ARTICLES:
            totals["other_pages"] += 1
        elif page.is_redirect:
            totals["redirects"] += 1
        else:
            options = Options(site.hidden, reading.lists, reading.headings, site.language)
            yield Article(page.text, options)
