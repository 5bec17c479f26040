"""Compressed record files with random access: independent gzip members of about 16 KiB.

Such a file is an ordinary gzip file with several members (RFC 1952, section 2.2), whose content is
an ordinary TFRecord file: zcat and TensorFlow's ``compression_type="GZIP"`` read it. A member,
called a block, contains whole records. Its header has a subfield ``TR`` in the extra field (section
2.3.1.1) with the block's size in the file and its number of records, both uint32, little-endian.
Blocks can thus be located without uncompressing any, as in BGZF (SAM format specification, section
4.1). A block without records ends the file and shows that the file is complete.

The side file ``X.offsets`` contains the magic bytes, the start of every block and the size of the
file, and the number of the first record of every block and the number of records.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.records.framing import (
    FRAMING_BYTES,
    FramedRecords,
    frame_end,
    keep_offsets,
    offsets_path,
    read_offsets,
    running_sums,
)
from bert_tf.util.errors import UserError

# Reading a record inflates one block: docs/reference/records.md explains the trade-off.
BLOCK_BYTES = 16 << 10
HEADER_BYTES = 24

MAGIC = b"TFRGZB01"
_LEVEL = 4  # 1.2 to 1.35 times faster than 6, for 1 to 3 % more bytes
_RAW_DEFLATE, _GZIP = -zlib.MAX_WBITS, zlib.MAX_WBITS | 16
# Deflate with an extra field, no time, unknown system; the subfield TR of 8 bytes.
_FIXED_HEADER = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H2sH", 12, b"TR", 8)
_TRAILER_BYTES = 8
_MOST_DEFLATED = 1032  # maximum bytes of content per byte of deflate
_CHECKED_BLOCKS = 16
_MOST_DECODED = 64


def compress_frames(frames: Sequence[bytes]) -> FramedRecords:
    """Compresses framed records in blocks, which are full at ``BLOCK_BYTES`` or more."""
    groups: list[list[bytes]] = []
    room = 0
    for frame in frames:
        if room <= 0:
            groups.append([])
            room = BLOCK_BYTES
        groups[-1].append(frame)
        room -= len(frame)
    return FramedRecords.of([_compress(group) for group in groups], [len(g) for g in groups])


def end_of_file() -> FramedRecords:
    """The empty block that ends a file."""
    return FramedRecords.of([_compress([])], [0])


class GzipBlocks:
    """Access to the framed records of a file by number."""

    def __init__(self, path: Path, starts: np.ndarray, firsts: np.ndarray):
        """Use :func:`open_blocks`; ``starts`` and ``firsts`` come from the side file."""
        self._path = path
        self._starts, self._firsts = starts, firsts
        self._decoded: dict[tuple[Path, int], _Decoded] = {}  # the most recently used last

    def share_decoded(self, other: GzipBlocks) -> None:
        """Keeps decoded blocks together with those of another file, within one limit for both."""
        self._decoded = other._decoded

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def frame(self, number: int, descriptor: int) -> bytes:
        """Reads the frame of record ``number`` from the open file ``descriptor``.

        Raises UserError if a block is damaged or the side file does not match the file.
        """
        # An integer of another type would convert the whole array for each search.
        which = int(np.searchsorted(self._firsts, np.uint64(number), side="right")) - 1
        block = self._decoded.pop((self._path, which), None)
        if block is None:
            block = self._decode(which, number, descriptor)
        self._decoded[self._path, which] = block
        if len(self._decoded) > _MOST_DECODED:  # no lock: another thread may do this, too
            for old in list(self._decoded)[:-_MOST_DECODED]:
                self._decoded.pop(old, None)
        start, end = block.ends[number - int(self._firsts[which]) :][:2]
        return block.content[start:end]

    def _decode(self, which: int, number: int, descriptor: int) -> _Decoded:
        start, end = int(self._starts[which]), int(self._starts[which + 1])
        count = int(self._firsts[which + 1]) - int(self._firsts[which])
        expected = (end - start, count)
        if not 0 <= start < end <= int(self._starts[-1]):
            raise UserError(
                f"{offsets_path(self._path)} does not match its record file; delete it."
            )
        data = os.pread(descriptor, end - start, start)
        if len(data) != end - start:
            raise UserError(
                f"{self._path} is truncated inside record {number}; make or copy it again."
            )
        if _parse_header(data) != expected:
            raise UserError(
                f"record {number} of {self._path} is damaged, or {offsets_path(self._path).name} "
                "does not match the file; delete the latter, and if that does not help, make or "
                "copy the file again."
            )
        try:
            content = zlib.decompress(data, _GZIP)
        except zlib.error as error:
            raise UserError(
                f"record {number} of {self._path} is damaged ({error}, in the block of records "
                f"{int(self._firsts[which])} to {int(self._firsts[which + 1]) - 1}); make or copy "
                "the file again."
            ) from error
        ends = _ends_of_frames(content)
        if ends is None or len(ends) != count + 1:
            raise UserError(
                f"record {number} of {self._path} is damaged: its block does not hold the "
                f"{count} records that it should; make the file again."
            )
        return _Decoded(content, ends)


def open_blocks(path: Path, descriptor: int, *, keep: bool) -> GzipBlocks | None:
    """The blocks of an open file.

    None if it has other gzip members, in which case it can only be read from its beginning.
    ``keep`` writes the side file if it is missing or does not match the file.

    Raises UserError if the file is truncated or damaged.
    """
    if _header_at(descriptor, 0) is None:
        return None
    values = read_offsets(path, MAGIC)
    if values is not None and len(values) % 2 == 0:
        starts, firsts = np.split(values, 2)
        if _fits(descriptor, starts, firsts):
            return GzipBlocks(path, starts, firsts)
    found = _scan(path, descriptor)
    if found is None:
        return None
    starts, firsts = (running_sums(column).astype("<u8") for column in found)
    if keep:
        keep_offsets(path, MAGIC, starts, firsts)
    return GzipBlocks(path, starts, firsts)


def written_blocks(path: Path, descriptor: int) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and record counts, int64 [M] each, of the blocks of a file that lacks its end.

    Raises UserError if the file is truncated inside a block, or damaged.
    """
    sizes, counts = _scan(path, descriptor, has_end=False) or ([], [])
    return np.array(sizes, np.int64), np.array(counts, np.int64)


class _Decoded(NamedTuple):
    """A block's content, with the bounds of its records, starting with 0."""

    content: bytes
    ends: list[int]


def _compress(frames: Sequence[bytes]) -> bytes:
    content = b"".join(frames)
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    compressed = compressor.compress(content) + compressor.flush()
    size = HEADER_BYTES + len(compressed) + _TRAILER_BYTES
    trailer = struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)
    return _FIXED_HEADER + struct.pack("<II", size, len(frames)) + compressed + trailer


def _parse_header(block: bytes) -> tuple[int, int] | None:
    """Size and record count of the block that starts here; None if there is none."""
    if len(block) < HEADER_BYTES or not block.startswith(_FIXED_HEADER):
        return None
    return struct.unpack_from("<II", block, len(_FIXED_HEADER))


def _header_at(descriptor: int, start: int) -> tuple[int, int] | None:
    return _parse_header(os.pread(descriptor, HEADER_BYTES, start))


def _fits(descriptor: int, starts: np.ndarray, firsts: np.ndarray) -> bool:
    """Checks the file's size and up to 16 block headers, including the first and the last."""
    if int(starts[0]) or int(firsts[0]) or int(starts[-1]) != os.fstat(descriptor).st_size:
        return False
    last = len(starts) - 2
    if last < 0:
        return False
    for number in np.unique(np.linspace(0, last, _CHECKED_BLOCKS).astype(np.int64)):
        size = int(starts[number + 1]) - int(starts[number])
        count = int(firsts[number + 1]) - int(firsts[number])
        if _header_at(descriptor, int(starts[number])) != (size, count):
            return False
    return True


def _scan(
    path: Path, descriptor: int, *, has_end: bool = True
) -> tuple[list[int], list[int]] | None:
    """Sizes and record counts of all blocks, from their headers; None as in open_blocks."""
    file_size = os.fstat(descriptor).st_size
    sizes: list[int] = []
    counts: list[int] = []
    start, count = 0, -1
    while start < file_size:
        data = os.pread(descriptor, HEADER_BYTES, start)
        header = _parse_header(data)
        if len(data) < HEADER_BYTES or (header and start + header[0] > file_size):
            break
        if header is None and data.startswith(_FIXED_HEADER[:3]):
            return None
        size, count = header or (0, 0)
        if size < HEADER_BYTES + _TRAILER_BYTES or count * FRAMING_BYTES > size * _MOST_DEFLATED:
            raise UserError(
                f"record {sum(counts)} of {path} is damaged; make or copy the file again."
            )
        sizes.append(size)
        counts.append(count)
        start += size
    if start != file_size or (has_end and count):
        raise UserError(f"{path} is truncated before record {sum(counts)}; make or copy it again.")
    return sizes, counts


def _ends_of_frames(content: bytes) -> list[int] | None:
    """0 and the ends of all frames in a block; None if they do not fill it exactly."""
    ends = [0]
    while ends[-1] + FRAMING_BYTES <= len(content):
        ends.append(frame_end(content, ends[-1]))
    return ends if ends[-1] == len(content) else None
