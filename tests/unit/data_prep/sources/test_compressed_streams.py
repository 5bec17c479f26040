"""Several compressed streams in a file: all of their content, or what is wrong and where."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources.compressed_streams import (
    BZIP2,
    GZIP,
    XZ,
    ZLIB,
    CompressedStreams,
    DamagedStreamError,
)

COMPRESS = {BZIP2: bz2.compress, GZIP: gzip.compress, XZ: lzma.compress, ZLIB: zlib.compress}
PADDING = {BZIP2: 0, GZIP: 3, XZ: 8, ZLIB: 0}
each_compression = pytest.mark.parametrize("compression", COMPRESS, ids=lambda c: c.name)


def read(content, compression, size=1 << 16, **options):
    streams = CompressedStreams(io.BytesIO(content), compression, **options)
    blocks = list(iter(lambda: streams.read(size), b""))
    assert all(len(block) <= size for block in blocks)
    assert streams.read(size) == b""
    return b"".join(blocks)


@each_compression
@given(
    parts=st.lists(st.binary(), min_size=1, max_size=4),
    size=st.integers(1, 9),
    block_bytes=st.integers(1, 99),
)
@settings(max_examples=50, deadline=None)
def test_all_streams_are_read(compression, parts, size, block_bytes):
    content = b"".join(COMPRESS[compression](part) + bytes(PADDING[compression]) for part in parts)
    assert read(content, compression, size, block_bytes=block_bytes) == b"".join(parts)


@each_compression
def test_no_change_of_a_bit_loses_anything(compression):
    first, second = (COMPRESS[compression](text * 9) for text in (b"some text", b"other text"))
    whole = first + second
    expected = read(whole, compression)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(DamagedStreamError):
            assert read(bytes(damaged), compression) == expected


@each_compression
def test_what_is_wrong_is_said_with_its_place(compression):
    one = COMPRESS[compression](b"some text")
    name, start = compression.name, len(one)
    for cut in range(start + 1, 2 * start):
        with pytest.raises(DamagedStreamError, match=rf"{name} stream .*begins at byte {start}"):
            read((one + one)[:cut], compression)
    for garbage in (b"garbage", b"\0garbage", b"\0" * 3 + one):
        if compression is GZIP and garbage.endswith(one):
            continue
        with pytest.raises(DamagedStreamError, match=rf"at byte {start}|{start + 1}"):
            read(one + garbage, compression)
    if not compression.padding_bytes:
        with pytest.raises(DamagedStreamError, match=f"at byte {start}"):
            read(one + bytes(4), compression)


def test_padding_of_xz_is_a_multiple_of_four():
    one = lzma.compress(b"some text")
    with pytest.raises(DamagedStreamError, match=f"6 zero bytes follow at byte {len(one)}, which"):
        read(one + bytes(6) + one, XZ)


@each_compression
def test_memory_is_that_of_a_block(compression):
    content = COMPRESS[compression](bytes(32 << 20))
    streams = CompressedStreams(io.BytesIO(content), compression)
    tracemalloc.start()
    try:
        while streams.read(1 << 16):
            pass
        assert tracemalloc.get_traced_memory()[1] < 10 << 20  # the window of xz is 8 MiB
    finally:
        tracemalloc.stop()
