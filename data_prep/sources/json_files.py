"""Reads JSON: one document per line, or a file with one object or a list of objects.

The text of a document is a field of its object: a string, or a list of strings (paragraphs).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from bert_tf.util.errors import UserError
from data_prep.sources.source_text import reduced
from data_prep.text.documents import Decoder

LONGEST_VALUE_BYTES = 256 << 20
_SHOWN_KEYS = 8


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class JsonRows(NamedTuple):
    """Lines with an object each, which make one document.

    Attributes:
      name: of the file, for messages.
      field: that has the text.
      lines: the number of each, from 1, and its content.
    """

    name: str
    field: str
    lines: list[tuple[int, bytes]]

    @property
    def size(self) -> int:
        """Bytes that were read for it."""
        return sum(len(line) for _, line in self.lines)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of the document."""
        paragraphs: list[str] = []
        for number, line in self.lines:
            where = f"line {number} of {self.name}"
            value = parse(decode(line, where), where)
            paragraphs += paragraphs_of(value, self.field, where)
        yield paragraphs


class JsonFile(NamedTuple):
    """A file with an object, or a list of them; attributes as above."""

    name: str
    field: str
    content: bytes

    @property
    def size(self) -> int:
        """Bytes that were read for it."""
        return len(self.content)

    def documents(self, decode: Decoder) -> Iterator[list[str]]:
        """The paragraphs of each document."""
        value = parse(decode(self.content, self.name), self.name)
        if isinstance(value, list):
            for number, inside in enumerate(value, 1):
                where = f"object {number} of {self.name}"
                yield paragraphs_of(inside, self.field, where)
        else:
            yield paragraphs_of(value, self.field, self.name)


def read_json_lines(
    stream: IO[bytes], name: str, field: str, *, rows_per_document: int
) -> Iterator[JsonRows]:
    """The documents of a stream of JSON lines in UTF-8; blank lines are left out.

    Raises UserError for a line of more than 256 MiB.
    """
    rows: list[tuple[int, bytes]] = []
    number = 0
    while line := stream.readline(LONGEST_VALUE_BYTES):
        number += 1
        if len(line) == LONGEST_VALUE_BYTES:
            raise _too_long(f"line {number} of {name}")
        if not line.isspace():
            rows.append((number, line))
        if len(rows) == rows_per_document:
            yield JsonRows(name, field, rows)
            rows = []
    if rows:
        yield JsonRows(name, field, rows)


def read_json_file(stream: IO[bytes], name: str, field: str) -> Iterator[JsonFile]:
    """The content of a stream in UTF-8; raises UserError if it is more than 256 MiB."""
    content = stream.read(LONGEST_VALUE_BYTES)
    if len(content) == LONGEST_VALUE_BYTES:
        raise _too_long(name)
    yield JsonFile(name, field, content)


def begins_with_object(head: bytes) -> bool:
    """Whether the first line of a file is a JSON object; one that goes on is taken for one."""
    line, end, _ = head.lstrip().partition(b"\n")
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return not end and line[1:].lstrip()[:1] == b'"'


def parse(text: str, where: str, *, numbers: bool = False) -> Any:
    """The value of a JSON text; raises UserError that begins with ``where``.

    Unless ``numbers`` are needed they stay text: those of many digits would take long, or fail.
    """
    try:
        if numbers:
            return json.loads(text)
        return json.loads(text, parse_int=_Number, parse_float=_Number)
    except RecursionError:
        raise UserError(f"--input_file: {where} is nested too deeply; leave it out.") from None
    except ValueError as error:
        raise UserError(
            f"--input_file: {where} is not valid JSON ({error}); correct it or leave it out."
        ) from None


def paragraphs_of(value: Any, field: str, where: str) -> list[str]:
    """The paragraphs in a field of an object; none if it is null."""
    if not isinstance(value, dict):
        raise UserError(f"--input_file: {where} is not a JSON object; give files of objects.")
    if field not in value:
        found = ", ".join(f"{key:.40}" for key in list(value)[:_SHOWN_KEYS]) or "nothing"
        raise UserError(
            f"--text_field={field}: {where} has no such field, but {found}; give the field with "
            "the text."
        )
    return paragraphs_in(value[field], f"the field {field} in {where}")


def paragraphs_in(text: Any, what: str) -> list[str]:
    """The paragraphs in a string or a list of strings; none in None."""
    if text is None:
        return []
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, list) or not all(map(_is_text, parts)):
        raise UserError(
            f"--text_field: {what} is not text or a list of texts; give the field with the text."
        )
    return reduced(_all_lines(parts))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number)


def _all_lines(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        yield from part.splitlines()


def _too_long(what: str) -> UserError:
    return UserError(
        f"--input_file: {what} is longer than {LONGEST_VALUE_BYTES >> 20} MiB; give JSON lines, "
        "with one document per line."
    )
