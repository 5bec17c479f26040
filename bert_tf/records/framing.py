"""The framing of records in a TFRecord file, and the side file that says where they start.

A frame (tensorflow/core/lib/io/record_writer.h) consists of the record's length (8 bytes,
little-endian), the masked CRC32C of the length (4 bytes), the record, and the masked CRC32C of the
record (4 bytes). The side file ``X.offsets`` of a record file ``X`` has 8 magic bytes, then
little-endian uint64.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.files import OFFSETS_SUFFIX, atomic_open

HEADER_BYTES = 12
FRAMING_BYTES = 16

_CRC_MASK_DELTA = 0xA282EAD8
_MAGIC_BYTES = 8
_MAPPED_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class FramedRecords:
    """Records with framing, as in a file.

    Attributes:
      content: uint8, concatenated framed records, or blocks of them.
      sizes: int64 [N], size of each framed record or block in bytes.
      counts: int64 [N], number of records in each block; None if uncompressed.
    """

    content: np.ndarray  # arrays reach another process without a copy, bytes do not
    sizes: np.ndarray
    counts: np.ndarray | None = None

    @classmethod
    def of(cls, parts: Sequence[bytes], counts: Sequence[int] | None = None) -> FramedRecords:
        """Concatenates framed records, or blocks with these numbers of records."""
        return cls(
            np.frombuffer(b"".join(parts), np.uint8),
            np.array([len(part) for part in parts], np.int64),
            None if counts is None else np.array(counts, np.int64),
        )


def frame_of(record: bytes) -> bytes:
    """A record with its length and checksums."""
    return _header(len(record)) + record + _masked_crc(record).to_bytes(4, "little")


@functools.lru_cache(maxsize=8192)
def _header(length: int) -> bytes:
    content = struct.pack("<Q", length)
    return content + struct.pack("<I", _masked_crc(content))


def length_in(frame: bytes) -> int | None:
    """The record length in a frame's header; None if the header is damaged."""
    length, crc = struct.unpack("<QI", frame[:HEADER_BYTES])
    return length if crc == _masked_crc(frame[:8]) else None


def header_fits(frame: bytes, size: int) -> bool:
    """Whether a frame starts with an intact header for a frame of ``size`` bytes."""
    return length_in(frame) == size - FRAMING_BYTES


def frame_end(content: bytes, start: int) -> int:
    """The end of the frame at ``start``, from the length in its header, which is not verified."""
    return start + struct.unpack_from("<Q", content, start)[0] + FRAMING_BYTES


def record_in(frame: bytes) -> bytes | None:
    """The record in a complete frame; None if its checksum is wrong."""
    record = frame[HEADER_BYTES:-4]
    return record if struct.unpack("<I", frame[-4:])[0] == _masked_crc(record) else None


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def offsets_path(path: Path) -> Path:
    """The side file of a record file."""
    return path.with_name(path.name + OFFSETS_SUFFIX)


def write_offsets(path: Path, magic: bytes, *columns: np.ndarray) -> None:
    """Writes the side file of ``path``, one column after the other; UserError if it cannot be."""
    with atomic_open(offsets_path(path), "wb") as file:
        file.write(magic)
        file.writelines(values.astype("<u8").tobytes() for values in columns)


def running_sums(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """The running sums, from 0, of N sizes: int64 [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def keep_offsets(path: Path, magic: bytes, *columns: np.ndarray) -> None:
    """Like :func:`write_offsets`, if possible; in a read-only directory, the next run scans."""
    with contextlib.suppress(UserError):
        write_offsets(path, magic, *columns)


def read_offsets(path: Path, magic: bytes) -> np.ndarray | None:
    """The values in the side file of ``path``, at least one; None if missing or malformed."""
    side_file = offsets_path(path)
    try:
        size = side_file.stat().st_size
        with open(side_file, "rb") as file:
            found = file.read(_MAGIC_BYTES)
    except OSError:
        return None
    if found != magic or size < _MAGIC_BYTES + 8 or size % 8:
        return None
    if size > _MAPPED_BYTES:  # so that ranks on one machine share the memory
        return np.memmap(side_file, "<u8", "r", offset=_MAGIC_BYTES)
    return np.fromfile(side_file, "<u8", offset=_MAGIC_BYTES)
