from __future__ import annotations

import gzip
import multiprocessing
import os
import tempfile
import zlib

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.records import compressed
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files
from tests.helpers.files import no_room

RECORDS = [b"first", b"", b"third \x00\x00", os.urandom(200_000), b"last" * 9]


def write(path, compression="GZIP", records=RECORDS):
    options = tf.io.TFRecordOptions(compression_type=compression)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


def read_all(path, **options):
    record_set = RecordSet([path], **options)
    return record_set.read(range(len(record_set)))


def copies(directory):
    return sorted(path.name for path in (directory / ".uncompressed").glob("*"))


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_what_tensorflow_compresses_is_read_in_any_order(tmp_path, compression, capfd):
    path = write(tmp_path / "a.tfrecord", compression)
    record_set = RecordSet([path])
    assert record_set.read([3, 0, 1, 4, 2, 3]) == [RECORDS[i] for i in (3, 0, 1, 4, 2, 3)]
    place = tmp_path / ".uncompressed"
    assert f"{path} is compressed; uncompressing it once, to {place}" in capfd.readouterr().err
    [copy, offsets] = copies(tmp_path)
    assert (copy.startswith("a.tfrecord."), offsets) == (True, f"{copy}.offsets")
    assert read_all(path) == RECORDS
    assert capfd.readouterr().err == ""  # the copy was there


def test_a_copy_is_no_file_of_the_directory(tmp_path):
    path = write(tmp_path / "a.tfrecord.gz")
    read_all(path)
    assert expand_record_files(str(tmp_path), flag="input_file") == [path]
    assert expand_record_files(f"{tmp_path}/*", flag="input_file") == [path]


def test_a_file_that_was_replaced_gets_a_new_copy_in_place_of_the_old_one(tmp_path):
    names = ["a", "a.gz", "ab"]
    for name in names:
        assert read_all(write(tmp_path / name)) == RECORDS
    before = copies(tmp_path)
    write(tmp_path / "a", records=RECORDS[::-1])
    assert read_all(tmp_path / "a") == RECORDS[::-1]
    after = copies(tmp_path)
    assert len(after) == len(before) == 2 * len(names)
    changed = set(before) ^ set(after)
    assert len(changed) == 4
    assert not any(name.startswith(("a.gz", "ab")) for name in changed)


def test_several_streams_in_one_file(tmp_path):
    first, second = (write(tmp_path / name).read_bytes() for name in "ab")
    path = tmp_path / "joined"
    path.write_bytes(first + second + bytes(7))  # gzip allows zeros
    assert read_all(path) == RECORDS * 2


def test_where_nothing_can_be_written_the_copy_is_temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(os, "access", lambda path, *_: path != tmp_path / "data")
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data" / "a")
    assert read_all(path) == RECORDS
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["a"]
    [place] = (tmp_path / "temporary").iterdir()
    assert place.stat().st_mode & 0o777 == 0o700
    assert read_all(path) == RECORDS
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    other = place.with_name(f"bert_tf_uncompressed_{os.getuid()}_{place.name[-16:]}")
    other.mkdir()
    with pytest.raises(UserError, match=r"another user.*uncompress the file, or set TMPDIR"):
        read_all(path)


@pytest.mark.parametrize("where", ["temporary", "adjacent"])
def test_a_link_that_somebody_else_made_is_not_followed(tmp_path, monkeypatch, where):
    """Nothing is written or deleted where it leads, though it has a name that is deleted."""
    shared, data, mine = (tmp_path / name for name in ("shared", "data", "mine"))
    for directory in (shared, data, mine):
        directory.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    path = write(data / "a")
    names = [f".notes.{os.getpid()}.tmp", f"a.{1}-{'0' * 16}"]
    for name in names:
        (mine / name).touch()
    if where == "adjacent":
        (data / compressed.COPIES_NAME).symlink_to(mine)
        assert read_all(path) == RECORDS
    else:
        monkeypatch.setattr(os, "access", lambda path, *_: path != data)
        compressed._temporary_place(path).symlink_to(mine)
        with pytest.raises(UserError, match=r"a link.*uncompress the file, or set TMPDIR"):
            read_all(path)
    assert sorted(p.name for p in mine.iterdir()) == sorted(names)


def test_a_dry_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = write(tmp_path / "a")
    record_set = RecordSet([path], keep_offsets=False)
    assert record_set.read([3]) == [RECORDS[3]]
    del record_set
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "temporary"]
    assert list((tmp_path / "temporary").iterdir()) == []


def cut(content):
    return content[: len(content) // 2]


def change(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, r"is damaged \(it ends within a stream\); make or copy it again"),
        (lambda content: content + b"more", r"is damaged \(Error -3.*header check\); make or "),
        (change, r"is damaged \(Error -3.*\); make or copy it again"),
        (lambda _: gzip.compress(b"text" * 9), "is compressed, but contains no TFRecords"),
        (lambda _: zlib.compress(b"x"), "is compressed, but contains no TFRecords"),
        (
            lambda content: gzip.compress(gzip.decompress(content)[:-3]),
            "is truncated inside record 4; make or copy it again",
        ),
    ],
)
def test_unusable_files_are_named(tmp_path, damage, said):
    path = write(tmp_path / "a.gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"^{path} {said}"):
        RecordSet([path])


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    path = write(tmp_path / "a.gz")
    RecordSet([write(tmp_path / "b.gz", records=[b"x"])])
    before = copies(tmp_path)
    with (
        no_room(100),
        pytest.raises(UserError, match=r"cannot write .*\.uncompressed.* free space"),
    ):
        RecordSet([path])
    assert copies(tmp_path) == before


def test_plain_records_whose_size_looks_like_a_compressed_file_are_plain(tmp_path):
    path = tmp_path / "a"
    with TFRecordWriter(path) as writer:
        writer.write(b"x" * int.from_bytes(b"\x1f\x8b", "little"))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert len(read_all(path)) == 1
    assert copies(tmp_path) == []


def uncompress(path, started, results):
    started.wait()
    results.put(len(read_all(path)))


def test_processes_that_want_it_at_once_make_it_once(tmp_path, capfd):
    path = write(tmp_path / "a.gz")
    (tmp_path / ".uncompressed").mkdir()
    # What a process that was killed left: half a copy.
    (tmp_path / ".uncompressed" / ".a.gz.123-ff.9999.tmp").write_bytes(b"half")
    context = multiprocessing.get_context("fork")
    started, results = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=uncompress, args=(path, started, results)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [len(RECORDS)] * 4
    for process in processes:
        process.join()
    assert capfd.readouterr().err.count("uncompressing it once") == 1
    assert len(copies(tmp_path)) == 2


def test_a_compressed_file_without_records(tmp_path):
    (tmp_path / "a").write_bytes(zlib.compress(b""))
    assert len(RecordSet([tmp_path / "a"])) == 0


def test_the_start_of_other_files_is_not_looked_for(tmp_path):
    for content in (b"", b"x", b"TFRecord"):
        (tmp_path / "a").write_bytes(content)
        assert compressed.first_content_bytes(tmp_path / "a", 12) is None
