"""Statistics of text files with a blank line between documents."""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep.inspection.hash_sample import HashSample, as_hashes

# Shares beyond which statistics are unusual.
MOST_REPEATED = 0.1
MOST_OF_ONE_LINE = 0.9
MOST_LONG_LINES = 0.01
LONG_LINE = 2000  # characters; sentences are shorter

READ_BYTES = 1 << 20  # of a line at once, however long it is
_BINS = 40  # powers of two
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character


@dataclasses.dataclass
class TextStatistics:
    """Counts over text files; all can be added to those of others.

    Attributes:
      documents, lines, characters: their numbers; blank lines and carriage returns do not count.
      one_line: documents of a single line.
      long_lines: lines of more than ``LONG_LINE`` characters.
      undecodable: lines that are not UTF-8.
      with_null: lines that contain null bytes.
      line_lengths, document_lengths: int64 [40], lines and documents by the number of bits of their
        length in characters: bin b is for 2^(b-1) to 2^b - 1.
      hashes: uint64, of the documents.
    """

    documents: int = 0
    lines: int = 0
    characters: int = 0
    one_line: int = 0
    long_lines: int = 0
    undecodable: int = 0
    with_null: int = 0
    line_lengths: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(_BINS, np.int64))
    document_lengths: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(_BINS, np.int64)
    )
    hashes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))

    def add(self, other: TextStatistics) -> None:
        """Adds another text, except for its hashes."""
        for field in dataclasses.fields(self):
            if field.name != "hashes":
                total = getattr(self, field.name) + getattr(other, field.name)
                setattr(self, field.name, total)


def count_text(path: Path) -> TextStatistics:
    """The statistics of a file, whatever bytes it has and however long its lines are."""
    found, hashes = TextStatistics(), array("Q")
    digest, num_lines, characters = hashlib.blake2b(digest_size=8), 0, 0

    def end_document() -> None:
        nonlocal digest, num_lines, characters
        if num_lines:
            found.documents += 1
            found.one_line += num_lines == 1
            found.document_lengths[min(characters.bit_length(), _BINS - 1)] += 1
            hashes.append(int.from_bytes(digest.digest(), "little"))
        digest, num_lines, characters = hashlib.blake2b(digest_size=8), 0, 0

    for line in _lines(path):
        if not line.is_text:
            end_document()
            continue
        num_lines += 1
        characters += line.characters
        digest.update(line.digest)
        found.lines += 1
        found.characters += line.characters
        found.long_lines += line.characters > LONG_LINE
        found.undecodable += not line.is_utf8
        found.with_null += line.has_null
        found.line_lengths[min(line.characters.bit_length(), _BINS - 1)] += 1
    end_document()
    found.hashes = as_hashes(hashes)
    return found


@dataclasses.dataclass
class _Line:
    """A line: whether it has more than white space, and what is counted of it."""

    is_text: bool = False
    characters: int = 0
    is_utf8: bool = True
    has_null: bool = False
    digest: bytes = b""


def _lines(path: Path) -> Iterator[_Line]:
    with open(path, "rb") as file:
        while piece := file.readline(READ_BYTES):
            line, digest = _Line(), hashlib.blake2b(digest_size=8)
            decoder = codecs.getincrementaldecoder("utf-8")()
            while True:
                is_last = piece.endswith(b"\n") or not piece
                content = piece.replace(b"\r", b"").rstrip(b"\n")
                digest.update(content)
                line.is_text |= bool(content) and not content.isspace()
                line.characters += len(content.translate(None, _CONTINUATION))
                line.has_null |= b"\0" in content
                line.is_utf8 = line.is_utf8 and _decodes(decoder, content, final=is_last)
                if is_last:
                    break
                piece = file.readline(READ_BYTES)
            line.digest = digest.digest()
            yield line


def _decodes(decoder: codecs.IncrementalDecoder, content: bytes, *, final: bool) -> bool:
    try:
        decoder.decode(content, final)
    except UnicodeDecodeError:
        return False
    return True


def unusual_text(
    found: TextStatistics, repeated: HashSample, *, has_sentences: bool
) -> Iterator[str]:
    """A sentence for each thing that is unusual; ``has_sentences`` says one stands on a line."""
    if not found.documents:
        yield "there is no text, only white space; give other files"
        return
    if found.undecodable:
        yield (
            f"{found.undecodable:,} lines are not UTF-8, which the stages refuse; convert the "
            "files, for example with iconv"
        )
    if found.with_null:
        yield f"{found.with_null:,} lines contain null bytes; look where the files come from"
    share = repeated.repeated_share()
    if share > MOST_REPEATED:
        yield f"{share:.1%} of the documents repeat another one; remove them with data_prep.clean"
    if not has_sentences:
        return
    share = found.one_line / found.documents
    if share > MOST_OF_ONE_LINE:
        yield (
            f"{share:.1%} of the documents have a single sentence, so there is hardly a next one; "
            "put blank lines between documents only, or make records with --nsp=false"
        )
    share = found.long_lines / found.lines
    if share > MOST_LONG_LINES:
        yield (
            f"{share:.1%} of the lines have more than {LONG_LINE:,} characters, so they are hardly "
            "sentences; split them with data_prep.sentences"
        )
