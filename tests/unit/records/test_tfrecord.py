from __future__ import annotations

import errno
import gzip
import os
import struct
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.records import framing
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter, frame_records
from bert_tf.util.errors import UserError

RECORDS = [b"first", b"", b"third \x00\x00", b"x" * 5000, b"last"]


def write(path, records):
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def write_with_tensorflow(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def offsets_path(path):
    return path.with_name(path.name + ".offsets")


def read_all(*paths):
    record_set = RecordSet(paths)
    return record_set.read(range(len(record_set)))


def test_we_write_the_bytes_that_tensorflow_writes(tmp_path):
    ours = write(tmp_path / "a", RECORDS)
    assert ours.read_bytes() == write_with_tensorflow(tmp_path / "b", RECORDS).read_bytes()


def test_we_read_what_tensorflow_writes_and_keep_the_offsets(tmp_path):
    path = write_with_tensorflow(tmp_path / "a", RECORDS)
    assert read_all(path) == RECORDS
    ours = write(tmp_path / "b", RECORDS)
    assert offsets_path(path).read_bytes() == offsets_path(ours).read_bytes()


def test_offsets_are_the_starts_and_the_size(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    ends = np.cumsum([len(record) + 16 for record in RECORDS]).tolist()
    content = offsets_path(path).read_bytes()
    assert content[:8] == b"TFROFF01"
    assert list(struct.unpack("<6Q", content[8:])) == [0, *ends]


def test_framed_records_can_be_added_in_groups(tmp_path):
    with TFRecordWriter(tmp_path / "a") as writer:
        writer.write_framed(frame_records(RECORDS[:2]))
        writer.write(RECORDS[2])
        writer.write_framed(frame_records([]))
        writer.write_framed(frame_records(RECORDS[3:]))
        assert writer.num_records == 5
    assert read_all(tmp_path / "a") == RECORDS


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    def fail():
        with TFRecordWriter(tmp_path / "a") as writer:
            writer.write(b"x")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_set_numbers_records_across_files_and_reads_in_any_order(tmp_path):
    first = write(tmp_path / "a", RECORDS[:2])
    empty = write(tmp_path / "b", [])
    last = write(tmp_path / "c", RECORDS[2:])
    record_set = RecordSet([first, empty, last])
    assert len(record_set) == 5
    order = [4, 0, 2, 2, 1, 3]
    assert record_set.read(order) == [RECORDS[i] for i in order]
    assert record_set.read(np.array(order)) == [RECORDS[i] for i in order]
    file, number = record_set.locate(3)
    assert (file.path, number) == (last, 1)
    for outside in (5, -1):
        with pytest.raises(IndexError):
            record_set.read([outside])


def test_many_files_do_not_stay_open(tmp_path):
    paths = [write(tmp_path / str(i), [b"%d" % i]) for i in range(257)]
    before = len(os.listdir("/proc/self/fd"))
    record_set = RecordSet(paths)
    assert record_set.read([4, 1, 0]) == [b"4", b"1", b"0"]
    assert len(os.listdir("/proc/self/fd")) == before
    kept = RecordSet(paths[:2])
    kept.read([0, 1])
    assert len(os.listdir("/proc/self/fd")) == before + 2
    kept.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert kept.read([1]) == [b"1"]


@pytest.mark.parametrize("foreign", [False, True])
def test_an_empty_file_has_no_records(tmp_path, foreign):
    path = (write_with_tensorflow if foreign else write)(tmp_path / "a", [])
    assert path.read_bytes() == b""
    assert len(RecordSet([path])) == 0


def test_a_changed_byte_is_found_and_named(tmp_path):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    content = bytearray(path.read_bytes())
    content[content.index(b"third")] ^= 1
    path.write_bytes(content)
    record_set = RecordSet([path])
    assert record_set.read([0, 1, 3, 4]) == [RECORDS[i] for i in (0, 1, 3, 4)]
    with pytest.raises(UserError, match=r"record 2 of .*a\.tfrecord is damaged"):
        record_set.read([2])


def test_a_changed_length_is_found_and_named(tmp_path):
    path = write(tmp_path / "a", [b"x" * 10] * 40)
    content = bytearray(path.read_bytes())
    content[26 * 9] = 9  # not among the 16 headers that are looked at when the file is opened
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"record 9 of .* is damaged"):
        RecordSet([path]).read([9])


@pytest.mark.parametrize("cut", [1, 4, 5, 19])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_truncated_file_is_found_and_named(tmp_path, cut, foreign):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    if foreign:
        offsets_path(path).unlink()
    os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(UserError, match=r"a\.tfrecord is truncated inside record 4"):
        RecordSet([path])


def test_a_file_cut_while_it_is_open_is_found(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    record_set = RecordSet([path])
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match="is truncated inside record 4"):
        record_set.read([4])


def test_a_file_that_holds_no_records_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"plain text, not records\0")
    with pytest.raises(UserError, match=r"record 0 of .* not a TFRecord file"):
        RecordSet([tmp_path / "a.txt"])
    with pytest.raises(UserError, match="cannot be read"):
        RecordSet([tmp_path / "missing"])


@pytest.mark.parametrize("same_size", [False, True])
def test_stale_offsets_are_replaced(tmp_path, same_size):
    path = write(tmp_path / "a", [b"aaaa", b"b", b"cc"])
    stale = offsets_path(path).read_bytes()
    records = [b"aa", b"bb", b"ccc"] if same_size else [b"other"]
    write(path, records)
    offsets_path(path).write_bytes(stale)
    assert read_all(path) == records
    assert offsets_path(path).read_bytes() != stale


@pytest.mark.parametrize("content", [b"", b"TFROFF01", b"TFROFF01" + b"\x01" * 12, b"x" * 56])
def test_malformed_offsets_are_replaced(tmp_path, content):
    path = write(tmp_path / "a", RECORDS)
    good = offsets_path(path).read_bytes()
    offsets_path(path).write_bytes(content)
    assert read_all(path) == RECORDS
    assert offsets_path(path).read_bytes() == good


@pytest.mark.parametrize("value", [2**63, 5, None])
def test_offsets_damaged_where_opening_does_not_look_are_refused(tmp_path, value):
    path = write(tmp_path / "a", [b"%02d" % number * 5 for number in range(40)])
    offsets = np.frombuffer(offsets_path(path).read_bytes()[8:], "<u8").copy()
    offsets[9] = offsets[9] + 4 if value is None else value
    offsets_path(path).write_bytes(b"TFROFF01" + offsets.tobytes())
    with pytest.raises(UserError, match=r"record 9 of .*a\.offsets does not match the file"):
        RecordSet([path]).read([9])
    offsets_path(path).unlink()
    assert RecordSet([path]).read([9, 8]) == [b"09" * 5, b"08" * 5]


def test_a_damaged_record_is_not_taken_for_damaged_offsets(tmp_path):
    path = write(tmp_path / "a", [b"x" * 10] * 40)
    content = bytearray(path.read_bytes())
    content[9 * (len(content) // 40)] ^= 1  # the length of record 9
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^record 9 of {path} is damaged"):
        RecordSet([path]).read([9])


def test_text_is_not_taken_for_damaged_records(tmp_path):
    for name, text in (
        ("a.txt", "Grüße an alle.\n" * 200),
        ("b.json", "{}\n"),
        ("c", "x" * 1023 + "ü"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"{name} is text, not a file of records; make records"):
            RecordSet([tmp_path / name])


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_files_that_are_compressed_as_a_whole_are_told_apart(tmp_path, compress):
    path = write(tmp_path / "a", RECORDS)
    offsets_path(path).unlink()
    path.write_bytes(compress(path.read_bytes()))
    with pytest.raises(UserError, match=f"{path} is compressed as a whole.*; uncompress it"):
        RecordSet([path])


def test_plain_records_whose_size_looks_like_a_compressed_file_are_plain(tmp_path):
    path = write(tmp_path / "a", [b"x" * int.from_bytes(b"\x1f\x8b", "little")])
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    offsets_path(path).unlink()
    assert len(read_all(path)) == 1


@pytest.mark.parametrize("edit", ["a record left out", "a record twice"])
def test_edited_offsets_never_give_another_record(tmp_path, edit):
    path = write(tmp_path / "a", [b"%02d" % number * 5 for number in range(40)])
    offsets = np.frombuffer(offsets_path(path).read_bytes()[8:], "<u8").tolist()
    if edit == "a record left out":
        del offsets[9]
    else:
        offsets.insert(9, offsets[9])
    offsets_path(path).write_bytes(b"TFROFF01" + np.array(offsets, "<u8").tobytes())
    record_set = RecordSet([path])  # opening looks at some others
    for number in range(8):
        assert record_set.read([number]) == [b"%02d" % number * 5]
    with pytest.raises(UserError, match=r"a\.offsets does not match the file"):
        record_set.read([8, 9])


def test_large_side_files_are_mapped(tmp_path):
    path = tmp_path / "a"
    framing.write_offsets(path, b"TFROFF01", np.arange(1 << 20))
    found = framing.read_offsets(path, b"TFROFF01")
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, np.arange(1 << 20))


def test_offsets_that_cannot_be_kept_are_made_anew(tmp_path, monkeypatch):
    path = write_with_tensorflow(tmp_path / "a", RECORDS)

    def refuse(source, _):
        raise PermissionError(errno.EACCES, "read-only", str(source))

    monkeypatch.setattr("os.replace", refuse)
    assert read_all(path) == RECORDS
    assert not offsets_path(path).exists()
