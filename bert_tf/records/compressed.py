"""Compressed record files, which are read from an uncompressed copy.

Records are read in random order, but a compressed stream can only be read from its beginning. So a
gzip or zlib file is uncompressed once, into ``.uncompressed`` in its directory or, if that is not
writable, into a private directory in the system's directory for temporary files (``TMPDIR``). A
copy is named after the file, its size and its last bytes, which contain the checksum of the
content, so a file that was replaced gets a new copy.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_tf.util.console import say
from bert_tf.util.digest import digest_of
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open
from bert_tf.util.progress import Progress
from bert_tf.util.temporary import make_private

COPIES_NAME = ".uncompressed"

_GZIP = b"\x1f\x8b"
_EITHER = zlib.MAX_WBITS | 32  # zlib finds out which of both formats a stream has
_END_BYTES = 8
_BLOCK_BYTES = 1 << 16
_COPY = re.compile(r"(.+)\.\d+-[0-9a-f]{16}(\.offsets)?")


def first_content_bytes(path: Path, num_bytes: int) -> bytes | None:
    """The first bytes of a compressed file's content; None if the file is not compressed."""
    if not _is_compressed(path):
        return None
    content = b""
    for _, block in _blocks(path):
        content += block
        if len(content) >= num_bytes:
            break
    return content[:num_bytes]


def uncompressed_copy(path: Path) -> Path:
    """The path of a file's uncompressed copy, which is created if it does not exist.

    Processes that need it at the same time wait for the one that creates it. Raises UserError if
    the file is damaged or the disk is full.
    """
    adjacent, name = path.parent / COPIES_NAME, _name_of_copy(path)
    if (adjacent / name).is_file():
        return adjacent / name
    # A directory next to the records is as trustworthy as they are, but a link may point anywhere.
    is_writable = os.access(path.parent, os.W_OK | os.X_OK) and not adjacent.is_symlink()
    place = adjacent if is_writable else _temporary_place(path)
    try:
        if place == adjacent:
            place.mkdir(exist_ok=True)
        else:
            make_private(place)
    except OSError as error:
        raise UserError(
            f"{path} is compressed, and its content cannot be written to {place} "
            f"({error.strerror}); uncompress the file, or set TMPDIR to a directory with enough "
            "space."
        ) from error
    if (place / name).is_file():
        return place / name
    with hold_directory(place, flag="input_file", wait=True):
        if not (place / name).is_file():
            for old in place.iterdir():
                copy = _COPY.fullmatch(old.name)
                if copy and copy[1] == path.name:
                    old.unlink()
            say(f"{path} is compressed; uncompressing it once, to {place}", stream=sys.stderr)
            write_uncompressed(path, place / name)
    return place / name


def write_uncompressed(path: Path, target: Path) -> None:
    """Writes the content of a compressed file; raises UserError if it is damaged."""
    if not _is_compressed(path):
        raise UserError(f"{path} changes while it is read; leave it alone, then restart.")
    progress = Progress(f"uncompressing {path.name}", path.stat().st_size / 1e6, "MB")
    with atomic_open(target, "wb") as file:
        for num_bytes_read, block in _blocks(path):
            file.write(block)
            progress.advance(num_bytes_read / 1e6)


def _name_of_copy(path: Path) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        return f"{path.name}.{size}-{file.read().hex()}"


def _temporary_place(path: Path) -> Path:
    directory = digest_of(os.fsencode(path.parent.resolve()))[:16]
    return Path(tempfile.gettempdir(), f"bert_tf_uncompressed_{os.getuid()}_{directory}")


def _is_compressed(path: Path) -> bool:
    with open(path, "rb") as file:
        start = file.read(2)
    # zlib's header (RFC 1950): method 8, and a multiple of 31.
    is_zlib = len(start) == 2 and start[0] & 15 == 8 and int.from_bytes(start, "big") % 31 == 0
    return is_zlib or start == _GZIP


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The content in pieces, each with the number of compressed bytes read for it.

    A file has one stream or several, and may have zero bytes between them. Raises UserError for
    anything else.
    """
    decoder: Any = None
    rest = b""
    with open(path, "rb") as file:
        try:
            while block := rest or file.read(_BLOCK_BYTES):
                num_read, rest = 0 if rest else len(block), b""
                if decoder is None and not (block := block.lstrip(b"\0")):
                    continue
                decoder = decoder or zlib.decompressobj(_EITHER)
                yield num_read, decoder.decompress(block)
                if decoder.eof:
                    decoder, rest = None, decoder.unused_data
            if decoder is not None:
                raise zlib.error("it ends within a stream")
        except zlib.error as error:
            raise UserError(f"{path} is damaged ({error}); make or copy it again.") from error
