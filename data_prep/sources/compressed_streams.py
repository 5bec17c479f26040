"""Reads compressed files of one or more streams, as written by parallel compressors.

Python's own readers stop at anything that does not look like the beginning of another stream, and
so lose everything after a damaged one. Here, everything up to the end of the file must be a stream
or padding that the format allows.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import IO, Any, Callable, NamedTuple

from bert_tf.util.errors import first_line


class DamagedStreamError(Exception):
    """Says what is wrong with a compressed stream, and at which byte; without a full stop."""


class _Inflater:
    """zlib's decompressor with the interface of the bzip2 and xz decompressors."""

    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data


class Compression(NamedTuple):
    """A compression format.

    Attributes:
      name: for messages.
      magic: the bytes with which each stream begins; empty if there are none.
      decompressor: creates a decompressor for one stream.
      padding_bytes: streams may be followed by zero bytes in multiples of this; 0 if by none.
    """

    name: str
    magic: bytes
    decompressor: Callable[[], Any]
    padding_bytes: int


BZIP2 = Compression("bzip2", b"BZh", bz2.BZ2Decompressor, 0)
GZIP = Compression("gzip", b"\x1f\x8b", lambda: _Inflater(zlib.MAX_WBITS | 16), 1)
XZ = Compression("xz", b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), 4)
ZLIB = Compression("zlib", b"", lambda: _Inflater(zlib.MAX_WBITS), 0)


class CompressedStreams:
    """The concatenated content of a file's streams; keeps one block and its window in memory."""

    def __init__(
        self, raw: IO[bytes], compression: Compression, *, block_bytes: int = 1 << 16
    ) -> None:
        """``raw`` must be at the beginning of the first stream; it is read in blocks."""
        self._raw = raw
        self._block_bytes = block_bytes
        self._compression = compression
        self._decoder: Any = None
        self._pending = b""  # read, but not yet passed to a decompressor
        self._bytes_read = 0
        self._start = 0  # of the current stream

    def read(self, size: int) -> bytes:
        """Returns at most ``size`` bytes, and none only at the end.

        Raises DamagedStreamError for anything except whole streams.
        """
        content = b""
        while not content and (not self._is_between_streams() or self._next_stream()):
            content = self._decompress(size)
        return content

    def _is_between_streams(self) -> bool:
        return self._decoder is None or self._decoder.eof

    def _next_stream(self) -> bool:
        """Starts the next stream; returns False at the end of the file."""
        if self._decoder is not None:
            self._pending, self._decoder = self._decoder.unused_data, None
            self._skip_padding()
        magic = self._compression.magic
        while len(self._pending) < max(len(magic), 1) and self._fill():
            pass
        self._start = self._bytes_read - len(self._pending)
        if not self._pending:
            return False
        if not self._pending.startswith(magic):
            raise DamagedStreamError(
                f"no {self._compression.name} stream begins at byte {self._start}, where another "
                "ends"
            )
        self._decoder = self._compression.decompressor()
        return True

    def _skip_padding(self) -> None:
        multiple = self._compression.padding_bytes
        if not multiple:
            return
        start = self._bytes_read - len(self._pending)
        self._pending = self._pending.lstrip(b"\0")
        while not self._pending and self._fill():
            self._pending = self._pending.lstrip(b"\0")
        count = self._bytes_read - len(self._pending) - start
        if count % multiple:
            raise DamagedStreamError(
                f"{count} zero bytes follow at byte {start}, which is not a multiple of {multiple}"
            )

    def _fill(self) -> bool:
        """Reads more input; returns False at the end of the file."""
        block = self._raw.read(self._block_bytes)
        self._bytes_read += len(block)
        self._pending += block
        return bool(block)

    def _decompress(self, size: int) -> bytes:
        decoder, is_at_end = self._decoder, False
        if decoder.needs_input and not self._pending:
            is_at_end = not self._fill()
        data = b""
        if decoder.needs_input:
            data, self._pending = self._pending, b""
        try:
            content = decoder.decompress(data, size)
        except (OSError, ValueError, lzma.LZMAError, zlib.error) as error:
            raise DamagedStreamError(f"{first_line(error)}, in {self._place}") from error
        if is_at_end and not content and not decoder.eof:
            raise DamagedStreamError(f"the file ends within {self._place}")
        return content

    @property
    def _place(self) -> str:
        return f"the {self._compression.name} stream that begins at byte {self._start}"
