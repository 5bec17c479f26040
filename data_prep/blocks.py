"""Splits text files with one sentence per line into blocks of documents for worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bert_tf.errors import UserError

_MAX_LINE_BYTES = 1 << 20


class Document(NamedTuple):
    """Consecutive non-blank lines of a file."""

    path: str
    first_line: int
    text: bytes


class Block(NamedTuple):
    """Documents that are processed together."""

    number: int
    documents: list[Document]


def read_documents(path: Path, *, max_bytes: int) -> Iterator[Document]:
    """Splits a file at blank lines, and a document also where it reaches ``max_bytes``."""
    lines: list[bytes] = []
    first_line, size = 1, 0
    number = 0
    with open(path, "rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            if len(line) == _MAX_LINE_BYTES:
                raise UserError(
                    f"--input_file: line {number} of {path} is longer than "
                    f"{_MAX_LINE_BYTES >> 20} MiB; put one sentence on a line."
                )
            is_text = not line.isspace()
            if is_text:
                lines.append(line)
                size += len(line)
            if lines and (not is_text or size >= max_bytes):
                yield Document(str(path), first_line, b"".join(lines))
                lines, size = [], 0
            if not lines:
                first_line = number + 1
    if lines:
        yield Document(str(path), first_line, b"".join(lines))


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


def decode_document(document: Document) -> Iterator[list[str]]:
    """The lines of a document, split further at lines of only Unicode white space."""
    try:
        text = document.text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = document.first_line + document.text.count(b"\n", 0, error.start)
        raise UserError(
            f"--input_file: line {line} of {document.path} is not UTF-8; convert the file first, "
            "for example with iconv."
        ) from None
    lines: list[str] = []
    for line in map(str.strip, text.split("\n")):
        if line:
            lines.append(line)
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines
