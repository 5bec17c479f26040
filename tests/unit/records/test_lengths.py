"""The side file of lengths: believed only beside the records that it was counted in."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf.records.lengths import keep_lengths, lengths_path, read_lengths
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.files import expand_record_files

COUNT = 300
LENGTHS = np.arange(COUNT) * 200 % 65536


def write(path, *, changed=None, count=COUNT):
    with TFRecordWriter(path) as writer:
        for number in range(count):
            writer.write(b"other" if number == changed else b"%d" % number)
    return RecordSet([path.with_name("0.tfrecord"), path])


@pytest.fixture(name="records")
def two_files(tmp_path):
    """The second of two files has lengths."""
    write(tmp_path / "0.tfrecord", count=3)
    records = write(tmp_path / "1.tfrecord")
    keep_lengths(records, records.files[1], LENGTHS)
    return records


def lengths(records):
    return read_lengths(records, records.files[1])


def test_lengths_are_kept(records):
    assert lengths(records).dtype == np.uint16
    np.testing.assert_array_equal(lengths(records), LENGTHS)
    assert read_lengths(records, records.files[0]) is None


def test_they_are_no_records(records, tmp_path):
    names = [path.name for path in expand_record_files(str(tmp_path), flag="input_file")]
    assert names == ["0.tfrecord", "1.tfrecord"]


@pytest.mark.parametrize("changes", [{"count": COUNT - 1}, {"changed": 0}, {"changed": COUNT - 1}])
def test_those_of_other_records_are_not_believed(records, tmp_path, changes):
    assert lengths(write(tmp_path / "1.tfrecord", **changes)) is None


@pytest.mark.parametrize("place", [0, 7, 20, 41, -1])
def test_nor_are_damaged_ones(records, place):
    path = lengths_path(records.files[1].path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert lengths(records) is None
    path.write_bytes(content[:-1])
    assert lengths(records) is None


def test_a_file_without_records_has_no_lengths(tmp_path):
    write(tmp_path / "0.tfrecord", count=0)
    records = write(tmp_path / "1.tfrecord", count=0)
    keep_lengths(records, records.files[1], np.zeros(0, int))
    assert len(lengths(records)) == 0
