"""Files of gzip blocks are gzip files of TFRecords to others, and read in any order here."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import os
import random
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.records import gzip_blocks
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter, frame_records
from bert_tf.util.errors import UserError

# Some longer than a block, some empty.
RECORDS = [
    random.Random(number).randbytes(number % 5) + b"%d" % number * (300 * (number % 7))
    for number in range(200)
] + [b"", os.urandom(60_000)]


def write(path, records=RECORDS, *, at_once=60):
    with TFRecordWriter(path, compression="gzip") as writer:
        for start in range(0, len(records), at_once):
            part = records[start : start + at_once]
            writer.write_framed(frame_records(part, compression="gzip"))
        assert writer.num_records == len(records)
    return path


def write_plain(path, records=RECORDS):
    with TFRecordWriter(path) as writer:
        writer.write_framed(frame_records(records))
    return path


def read_all(path, **options):
    record_set = RecordSet([path], **options)
    return record_set.read(range(len(record_set)))


def offsets_of(path):
    return path.with_name(f"{path.name}.offsets")


def members(content):
    """(start, size, records) of each member, by RFC 1952."""
    found, start = [], 0
    while start < len(content):
        fixed = content[start : start + 10]
        assert fixed[:4] == b"\x1f\x8b\x08\x04"
        (length,) = struct.unpack_from("<H", content, start + 10)
        name, size_of_field, size, count = struct.unpack_from("<2sHII", content, start + 12)
        assert (length, name, size_of_field) == (12, b"TR", 8)
        found.append((start, size, count))
        start += size
    assert start == len(content)
    return found


@pytest.fixture(scope="module")
def small_blocks():
    patch = pytest.MonkeyPatch()
    patch.setattr(gzip_blocks, "BLOCK_BYTES", 2000)
    yield
    patch.undo()


@pytest.fixture
def path(tmp_path, small_blocks):
    return write(tmp_path / "a.tfrecord.gz")


def test_zcat_gives_the_plain_file(path, tmp_path):
    plain = write_plain(tmp_path / "plain").read_bytes()
    assert subprocess.run(["gzip", "-dc", path], capture_output=True, check=True).stdout == plain
    assert gzip.decompress(path.read_bytes()) == plain


def test_tensorflow_reads_it_as_gzip(path):
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP")
        following = tf.data.make_one_shot_iterator(dataset).get_next()
        assert [session.run(following) for _ in RECORDS] == RECORDS
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(following)


def test_blocks_and_side_file(path):
    found = members(path.read_bytes())
    starts, sizes, counts = map(list, zip(*found))
    assert counts[-1] == 0
    assert min(counts[:-1]) >= 1
    assert sum(counts) == len(RECORDS)
    first = 0
    for start, size, count in found[:-1]:
        block = gzip.decompress(path.read_bytes()[start : start + size])
        assert block == bytes(frame_records(RECORDS[first : first + count]).content)
        first += count
    content = offsets_of(path).read_bytes()
    expected = [*starts, starts[-1] + sizes[-1], *np.cumsum([0, *counts])]
    assert content == b"TFRGZB01" + np.array(expected, "<u8").tobytes()


@settings(max_examples=30, deadline=None)
@given(
    records=st.lists(st.binary(max_size=3000), max_size=30),
    at_once=st.integers(1, 30),
    block_bytes=st.integers(1, 4000),
)
def test_what_was_written_is_read(records, at_once, block_bytes):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(gzip_blocks, "BLOCK_BYTES", block_bytes)
        path = write(Path(directory, "a"), records, at_once=at_once)
        assert read_all(path) == records
        framed = bytes(frame_records(records).content)
        assert gzip.decompress(path.read_bytes()) == framed


@pytest.mark.parametrize("stale", ["none", "short", "other size", "same size", "plain"])
def test_a_side_file_that_does_not_fit_is_replaced(path, tmp_path, stale):
    good = offsets_of(path).read_bytes()
    if stale == "none":
        offsets_of(path).unlink()
    elif stale == "short":
        offsets_of(path).write_bytes(good[:-8])
    elif stale == "other size":
        offsets_of(path).write_bytes(offsets_of(write(tmp_path / "b", RECORDS[:9])).read_bytes())
    elif stale == "same size":
        values = np.frombuffer(good[8:], "<u8").copy()
        values[len(values) // 2 + 1] += 1
        offsets_of(path).write_bytes(good[:8] + values.tobytes())
    else:
        offsets_of(path).write_bytes(offsets_of(write_plain(tmp_path / "b")).read_bytes())
    assert read_all(path, keep_offsets=False) == RECORDS
    assert read_all(path) == RECORDS
    assert offsets_of(path).read_bytes() == good


@pytest.mark.parametrize("edit", ["a start moved", "a record more", "a block left out"])
def test_edited_side_files_never_give_another_record(tmp_path, edit, monkeypatch):
    """Where opening the file does not look, which is at every sixth or seventh block."""
    monkeypatch.setattr(gzip_blocks, "BLOCK_BYTES", 1)
    path = write(tmp_path / "a", [b"%03d" % number * 5 for number in range(100)])
    values = np.frombuffer(offsets_of(path).read_bytes()[8:], "<u8")
    starts, firsts = (column.tolist() for column in np.split(values, 2))
    if edit == "a start moved":
        starts[9] += 1
    elif edit == "a record more":
        firsts[9:] = [first + 1 for first in firsts[9:]]
    else:
        del starts[9], firsts[9]
    values = np.array(starts + firsts, "<u8")
    offsets_of(path).write_bytes(b"TFRGZB01" + values.tobytes())
    record_set = RecordSet([path])
    found = [8, 9] if edit != "a block left out" else [8]
    with pytest.raises(UserError, match=r"record [89] of .*a is damaged, or a\.offsets does not"):
        record_set.read(found)


@pytest.mark.parametrize("with_offsets", [True, False])
def test_a_byte_changed_anywhere_never_gives_other_records(path, with_offsets):
    content = path.read_bytes()
    rng = random.Random(0)
    start, size, _ = members(content)[20]
    places = {*range(24), *range(start, start + 30), *range(start + size - 8, start + size)}
    places |= {*range(len(content) - 34, len(content))}
    places |= {rng.randrange(len(content)) for _ in range(60)}
    harmless = set()
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        if not with_offsets:
            offsets_of(path).unlink(missing_ok=True)
        with contextlib.suppress(UserError):
            assert read_all(path, keep_offsets=False) == RECORDS
            harmless.add(place)
    # A header without which the file is any gzip file, the bits that fill up the last byte of a
    # block's content, and the end of the file, which holds nothing.
    allowed = {*range(len(content) - 34, len(content))}
    for start, size, _ in members(content):
        allowed |= {*range(start + 3, start + 20), start + size - 9}
    assert harmless <= allowed
    assert len(harmless) < len(places) / 2


def test_the_record_of_a_damaged_block_is_named(path):
    content = bytearray(path.read_bytes())
    start, size, count = members(content)[12]
    first = sum(n for _, _, n in members(content)[:12])
    content[start + size - 6] ^= 1
    path.write_bytes(content)
    record_set = RecordSet([path])
    assert record_set.read([first - 1, first + count]) == [
        RECORDS[first - 1],
        RECORDS[first + count],
    ]
    said = rf"record {first} of {path} is damaged \(.*in the block of records {first} to "
    with pytest.raises(UserError, match=said):
        record_set.read([first])


@pytest.mark.parametrize("with_offsets", [True, False])
def test_a_cut_file_is_named(path, with_offsets):
    content = path.read_bytes()
    found = members(content)
    first = sum(count for _, _, count in found[:30])
    start = found[30][0]
    for size in (start, start + 1, start + 24, start + 100, len(content) - 1):
        path.write_bytes(content[:size])
        if not with_offsets:
            offsets_of(path).unlink(missing_ok=True)
        number = len(RECORDS) if size == len(content) - 1 else first
        with pytest.raises(UserError, match=f"{path} is truncated before record {number}; make or"):
            read_all(path)


def test_a_file_cut_while_it_is_open(path):
    record_set = RecordSet([path])
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"is truncated inside record 201"):
        record_set.read([201])


def test_joined_files(path, tmp_path):
    joined, plain = tmp_path / "joined", write_plain(tmp_path / "b")
    joined.write_bytes(path.read_bytes() * 2)
    record_set = RecordSet([plain, joined])
    order = random.Random(1).sample(range(3 * len(RECORDS)), 3 * len(RECORDS))
    assert record_set.read(order) == [(RECORDS * 3)[i] for i in order]
    joined.write_bytes(path.read_bytes() + gzip.compress(plain.read_bytes()))
    with pytest.raises(UserError, match="is compressed as a whole"):
        RecordSet([joined])


@pytest.mark.parametrize(
    "start", [b"\x1f\x8b\x08\x04", b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x0c\0TR\x08\0"]
)
def test_the_header_alone_is_no_file(tmp_path, start):
    (tmp_path / "a").write_bytes(start + bytes(8))
    with pytest.raises(
        UserError, match=rf"{tmp_path}/a is (truncated|damaged|compressed)|record 0 of"
    ):
        RecordSet([tmp_path / "a"])


def test_threads_read_at_once(path):
    record_set = RecordSet([path])
    orders = [random.Random(n).sample(range(len(RECORDS)), len(RECORDS)) for n in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for order, found in zip(orders, threads.map(record_set.read, orders)):
            assert found == [RECORDS[i] for i in order]


def test_reading_in_order_reads_a_block_once(path, monkeypatch):
    places, pread = [], os.pread
    record_set = RecordSet([path])

    def counted(descriptor, size, start):
        places.append(start)
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", counted)
    for number in range(len(RECORDS)):
        record_set.read([number])
    assert places == sorted(set(places))
    assert len(places) == len(members(path.read_bytes())) - 1


def test_more_blocks_than_are_kept_inflated(tmp_path, monkeypatch):
    """64 are kept; in any order, with blocks that are read anew, the records stay the same."""
    monkeypatch.setattr(gzip_blocks, "BLOCK_BYTES", 1)
    records = [b"%03d" % number * 5 for number in range(200)]
    record_set = RecordSet([write(tmp_path / "a", records)])
    for order in (range(200), range(199, -1, -1), random.Random(1).choices(range(200), k=900)):
        assert record_set.read(list(order)) == [records[number] for number in order]
