"""Keeps finished pieces of the output on disk, and joins them in the order of the texts.

A piece is written by the rank that computed it, and has its description, which holds a digest, once
it is complete. Joining appends one piece after the other and removes it, so that at no time both
exist in full; a journal records how far that has come.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_tf.stages.journal import AppendedFile, Journal
from bert_tf.tasks.vectors.forms import Encoded, Form
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, explain_write_errors, sha256_of_file
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

_JOINED = "joined"
_CONTENT, _TOKENS, _DESCRIPTION = "content", "tokens", "json"


class Pieces:
    """The pieces of one output, in a directory that all ranks share."""

    def __init__(self, directory: Path, count: int) -> None:
        """``count`` is the number of pieces."""
        self._directory = directory
        self._count = count

    def path(self, piece: int, kind: str) -> Path:
        """A file of a piece."""
        return self._directory / f"piece-{piece:06d}.{kind}"

    def write(self, piece: int, encoded: Encoded, *, cut_texts: int) -> None:
        """Writes a piece; UserError if the disk is full."""
        for kind, content in ((_TOKENS, encoded.tokens), (_CONTENT, encoded.content)):
            with atomic_open(self.path(piece, kind), "wb", durable=True) as file:
                file.write(content)
        description = {
            "rows": encoded.rows,
            "cut_texts": cut_texts,
            "sha256": hashlib.sha256(encoded.content).hexdigest(),
            "tokens_sha256": hashlib.sha256(encoded.tokens).hexdigest(),
        }
        write_sealed_json(self.path(piece, _DESCRIPTION), description, durable=True)

    def missing(self, journal: Journal) -> list[int]:
        """The pieces that are yet to be computed: those that are incomplete or damaged."""
        return [
            piece
            for piece in range(self._count)
            if not self._is_intact(piece, with_content=piece >= journal.items)
        ]

    def described(self) -> list[dict[str, Any]]:
        """The descriptions of all pieces; UserError if this rank does not see one."""
        return [_read(self.path(piece, _DESCRIPTION)) for piece in range(self._count)]

    def journal(self, call: str) -> Journal:
        """How far joining had come; ``call`` is a digest of all that determines the output."""
        return Journal(self._directory / _JOINED, call)

    def join(self, form: Form, journal: Journal) -> Path:
        """Joins all pieces after the header; returns the file, which the caller moves away."""
        joined = self._directory / _JOINED / _CONTENT
        rows = sum(piece["rows"] for piece in self.described())
        header, tokens_header = form.headers(rows)
        if form.tokens_file is not None:
            with atomic_open(form.tokens_file, "wb", durable=True) as file:
                file.write(tokens_header)
                file.writelines(self._contents(_TOKENS))
        with explain_write_errors(joined), AppendedFile(joined) as file:
            if not journal.written:
                file.write(header)
            for piece in range(journal.items, self._count):
                path = self.path(piece, _CONTENT)
                file.write(path.read_bytes())
                journal.add_item({}, input_bytes=0, outputs=[file])
                journal.save([file])
                path.unlink()
        return joined

    def _contents(self, kind: str) -> Iterable[bytes]:
        return (self.path(piece, kind).read_bytes() for piece in range(self._count))

    def _is_intact(self, piece: int, *, with_content: bool) -> bool:
        try:
            description = _read(self.path(piece, _DESCRIPTION))
        except UserError:
            return False
        expected = {_TOKENS: description["tokens_sha256"]}
        if with_content:
            expected[_CONTENT] = description["sha256"]
        return all(
            os.path.isfile(path) and sha256_of_file(path) == digest
            for path, digest in ((self.path(piece, k), d) for k, d in expected.items())
        )


def finished_pieces(directory: Path) -> Iterator[Path]:
    """The descriptions of the pieces in a directory."""
    return directory.glob(f"piece-*.{_DESCRIPTION}")


def _read(path: Path) -> dict[str, Any]:
    advice = "delete it to have it computed again"
    return read_sealed_json(path, what="piece of vectors", advice=advice, required=True)
