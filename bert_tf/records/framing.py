"""The framing of records in a TFRecord file (tensorflow/core/lib/io/record_writer.h).

A frame consists of the record's length (8 bytes, little-endian), the masked CRC32C of the length (4
bytes), the record, and the masked CRC32C of the record (4 bytes).
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Sequence

import google_crc32c
import numpy as np

HEADER_BYTES = 12
FRAMING_BYTES = 16

_CRC_MASK_DELTA = 0xA282EAD8


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
