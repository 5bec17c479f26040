"""How text is read: files in parts or documents, bytes as UTF-8, lines as documents.

Whoever reads in parts finds documents, or sentences, in each part by itself, in a worker process.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

from bert_tf.config.declared import Settings, setting
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

UTF_8 = "utf-8"
ERROR, REPLACE = "error", "replace"
# Counts of manifests.
CUT_LINES, CUT_DOCUMENTS, REPLACED = "cut_lines", "cut_documents", "replaced_characters"
LONGEST_SENTENCE_BYTES = 1 << 19

READ_BYTES = 1 << 20
_MANY_NULLS = 0.1
MAX_LINE_BYTES = 1 << 20
_SEARCHED_BYTES = 1 << 16
# What comes before a border, as far as possible.
_LINE = re.compile(rb".*[\r\n]", re.DOTALL)
_SENTENCE = re.compile(rb".*(?:[.!?][\"')\]]*[ \t]|\xe3\x80\x82|\xe0\xa5\xa4|\xdb\x94)", re.DOTALL)
_WORD = re.compile(rb".*[ \t\v\f]", re.DOTALL)
_LONE_RETURN = re.compile(rb"\r(?!\r*\n)")
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_LINE_END = re.compile(r"\r*\n|\r")
_LAST_CHARACTER = re.compile(rb"[^\x80-\xbf][\x80-\xbf]{0,3}\Z")


@dataclasses.dataclass(frozen=True)
class DecodingSettings(Settings):
    """How bytes become text."""

    heading: ClassVar[str] = "Text"
    invalid_utf8: str = setting(
        ERROR,
        "What to do with bytes that are not UTF-8: refuse the file, or replace them by U+FFFD "
        "(which tokenization drops) and count them in the manifest.",
        choices=(ERROR, REPLACE),
    )


class Part(NamedTuple):
    """A part of a file.

    Attributes:
      name: of the file.
      offset: of the content in it, in bytes.
      content: its bytes.
      is_cut: it ends where there is no border, because none was near.
    """

    name: str
    offset: int
    content: bytes
    is_cut: bool = False

    def place(self, position: int) -> str:
        """Where a byte of the content is, for messages."""
        return f"{self.name}, at byte {self.offset + position},"


def read_parts(
    stream: IO[bytes],
    name: PathLike,
    *,
    border: Callable[[bytes], int],
    cut: Callable[[bytes], int],
    most_bytes: int | None = None,
) -> Iterator[Part]:
    """Splits text into parts that depend only on its content.

    Args:
      stream: the text.
      name: of its file.
      border: the position after the last border in some text, 0 if there is none.
      cut: a position instead, in text that is too long.
      most_bytes: length from which text without a border is cut; 2 MiB by default.
    """
    most_bytes = 2 * READ_BYTES if most_bytes is None else most_bytes
    pending, offset = b"", 0
    while block := stream.read(READ_BYTES):
        pending += block
        end, is_cut = border(pending), False
        if not end and len(pending) >= most_bytes:
            end, is_cut = cut(pending), True
        if end:
            yield Part(str(name), offset, pending[:end], is_cut)
            pending, offset = pending[end:], offset + end
    if pending:
        yield Part(str(name), offset, pending)


class Decoder:
    """Decodes text.

    Attributes:
      counts: characters that were put in place of other bytes, under REPLACED; readers of formats
        add what they leave out.
    """

    def __init__(self, invalid_utf8: str = ERROR):
        """``invalid_utf8`` is ERROR or REPLACE, by U+FFFD."""
        self._replaces = invalid_utf8 == REPLACE
        self.counts: collections.Counter[str] = collections.Counter()

    def __call__(
        self, content: bytes, where: str | Callable[[int], str], encoding: str = UTF_8
    ) -> str:
        """Decodes text.

        Args:
          content: the bytes.
          where: what they are, or for the position of a wrong byte among them what that is.
          encoding: what the text says of itself, where a format has text in several.

        Raises:
          UserError: some are not of the encoding, and they are not replaced.
        """
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            if not self._replaces:
                place = where(error.start) if callable(where) else f"byte {error.start} of {where}"
                raise UserError(
                    f"--input_file: {place} is not {encoding.upper()}; convert the file, or read "
                    "it by data_prep.extract with its --encoding, such as windows-1252, or with "
                    "--invalid_utf8=replace to put U+FFFD in place of such bytes."
                ) from None
        text = content.decode(encoding, "replace")
        before = content.count("\ufffd".encode()) if encoding == UTF_8 else 0
        self.counts[REPLACED] += text.count("\ufffd") - before
        return text


def require_few_nulls(content: bytes, name: object) -> None:
    """Raises UserError for content full of null bytes, which is then not UTF-8."""
    if content.count(0) > _MANY_NULLS * len(content):
        raise UserError(
            f"--input_file: {name} is not text in UTF-8: it is full of null bytes; if it is in "
            "UTF-16, read it by data_prep.extract --encoding=utf-16-le (or utf-16-be), otherwise "
            "leave it out."
        )


def split_lines(text: str) -> list[str]:
    """Splits at line ends of any system; a line feed after several carriage returns is one."""
    return (_LINE_END.sub("\n", text) if "\r" in text else text).split("\n")


def between_blank_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """The runs of lines that are not empty."""
    for has_text, run in itertools.groupby(lines, key=bool):
        if has_text:
            yield list(run)


class Document(NamedTuple):
    """Consecutive non-blank lines of a file.

    Attributes:
      path: of the file.
      first_line: number of its first line.
      text: its lines.
      piece: its number among the pieces of a document that was cut, from 1; 0 if it is whole.
    """

    path: str
    first_line: int
    text: bytes
    piece: int = 0


class Block(NamedTuple):
    """Documents that are processed together."""

    number: int
    documents: list[Document]


def read_documents(
    path: Path,
    *,
    max_bytes: int,
    cut_lines: bool = False,
    cuts: collections.Counter[str] | None = None,
) -> Iterator[Document]:
    """Splits a file at blank lines, and a document also where it reaches ``max_bytes``.

    Not in parts, since records are made of documents that are cut at lines, and of numbered ones.

    Args:
      path: the file.
      max_bytes: length from which a document is cut before its next line.
      cut_lines: a line of more than 1 MiB is cut after a sentence; otherwise it is refused.
      cuts: counts cuts under CUT_DOCUMENTS and CUT_LINES.
    """
    cuts = collections.Counter() if cuts is None else cuts
    lines: list[bytes] = []
    first_line, size, piece, num_read = 1, 0, 0, 0
    for number, is_text, line in _lines_of(path, cut_lines, cuts):
        if lines and not is_text:
            yield Document(str(path), first_line, b"".join(lines), piece)
            lines, size, piece = [], 0, 0
        elif size >= max_bytes:
            piece = max(1, piece)
            yield Document(str(path), first_line, b"".join(lines), piece)
            cuts[CUT_DOCUMENTS] += 1
            lines, size, piece = [], 0, piece + 1
        if is_text:
            first_line = first_line if lines else num_read + 1
            lines.append(line)
            size += len(line)
        num_read = number
    if lines:
        yield Document(str(path), first_line, b"".join(lines), piece)


def _lines_of(
    path: Path, cut_lines: bool, cuts: collections.Counter[str]
) -> Iterator[tuple[int, bool, bytes]]:
    """The lines of a file: number of whole lines so far, whether it is not blank, and bytes.

    A carriage return that ends a line by itself becomes a line feed.
    """
    number = 0
    with open(path, "rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            is_cut = False
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                # Not the last byte, which may be the first one of CR LF.
                end = line.rfind(b"\r", 0, -1) + 1
                if not end and not cut_lines:
                    raise UserError(
                        f"--input_file: line {number + 1} of {path} is longer than "
                        f"{MAX_LINE_BYTES >> 20} MiB; put one sentence on a line, each with a "
                        "line feed at its end, as data_prep.sentences does."
                    )
                if not end:
                    end, is_cut = cut_position(line[:-1]), True  # room for a line feed
                    cuts[CUT_LINES] += 1
                file.seek(end - len(line), os.SEEK_CUR)
                line = line[:end] + b"\n" * is_cut
            has_returns = b"\r" in line
            parts = _LINES.findall(_LONE_RETURN.sub(b"\n", line)) if has_returns else [line]
            for part in parts:
                number += not is_cut
                yield number, not part.isspace(), part


def cut_position(content: bytes) -> int:
    """Where to cut text that is too long: after its last line, sentence, word or character.

    Only its last 64 KiB are looked at.
    """
    start = max(0, len(content) - _SEARCHED_BYTES)
    tail = content[start:]
    for border in (_LINE, _SENTENCE, _WORD):
        found = border.match(tail)
        if found:
            return start + found.end()
    character = _LAST_CHARACTER.search(tail)
    return start + character.start() if character and start + character.start() else len(content)


def last_blank_line(content: bytes) -> int:
    """Position after the last blank line, 0 if there is none; lines may end in CR alone."""
    borders = (b"\n\n", b"\n\r\n") if b"\n" in content else (b"\r\r",)
    ends = (content.rfind(border) + len(border) for border in borders if border in content)
    return max(ends, default=0)


def cut_long_sentences(
    sentences: list[str], max_bytes: int = LONGEST_SENTENCE_BYTES
) -> tuple[list[str], int]:
    """Cuts sentences that are longer in UTF-8; also returns the number of cuts.

    Later stages refuse lines of more than 1 MiB.
    """
    if max(map(len, sentences), default=0) <= max_bytes // 4:
        return sentences, 0
    parts = []
    for sentence in sentences:
        rest = sentence.encode("utf-8")
        while len(rest) > max_bytes:
            cut = cut_position(rest[:max_bytes])
            parts.append(rest[:cut].decode("utf-8").strip())
            rest = rest[cut:]
        parts.append(rest.decode("utf-8").strip())
    kept = list(filter(None, parts))
    return kept, len(kept) - len(sentences)


def group_documents(documents: Iterable[Document], *, block_bytes: int) -> Iterator[Block]:
    """Collects documents into full blocks; a single last document joins the block before it."""
    complete: list[Document] = []
    current: list[Document] = []
    number = size = 0
    for document in documents:
        current.append(document)
        size += len(document.text)
        if size >= block_bytes:
            if complete:
                yield Block(number, complete)
                number += 1
            complete, current, size = current, [], 0
    if len(current) == 1:
        complete += current
        current = []
    for group in (complete, current):
        if group:
            yield Block(number, group)
            number += 1


def read_blocks(
    files: Iterable[Path],
    *,
    block_bytes: int,
    max_bytes: int,
    cuts: collections.Counter[str],
    cut_lines: bool = False,
) -> Iterator[Block]:
    """The documents of files in blocks, see :func:`read_documents` and :func:`group_documents`."""
    documents = itertools.chain.from_iterable(
        read_documents(path, max_bytes=max_bytes, cut_lines=cut_lines, cuts=cuts) for path in files
    )
    return group_documents(documents, block_bytes=block_bytes)


def decode_document(document: Document) -> Iterator[list[str]]:
    """The lines of a document, split further at lines of only Unicode white space."""

    def where(position: int) -> str:
        line = document.first_line + document.text.count(b"\n", 0, position)
        return f"line {line} of {document.path}"

    text = Decoder()(document.text, where)
    return between_blank_lines(map(str.strip, split_lines(text)))
