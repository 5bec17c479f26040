"""Copies of records on a local disk: complete, verified, bounded, and never taken from a reader."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from types import SimpleNamespace

import pytest

from bert_tf.records import local_cache
from bert_tf.records.local_cache import NoRoomError, local_copies
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room


@pytest.fixture(autouse=True)
def released():
    yield
    local_cache.release()


def write(path, records):
    path.parent.mkdir(exist_ok=True)
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def opened(*paths):
    return RecordSet(paths).files


def records_of(copies):
    found = RecordSet(copies.files)
    return found.read(range(len(found)))


def sets(cache):
    return sorted(path.name for path in cache.glob("records-*"))


def all_bytes(directory):
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_copies_hold_the_same_records_and_are_used_again(tmp_path, cache, capsys):
    # Two files of the same name in two directories.
    files = opened(write(tmp_path / "a" / "x", [b"1", b"2"]), write(tmp_path / "b" / "x", [b"3"]))
    first = local_copies(files, cache)
    assert records_of(first) == [b"1", b"2", b"3"]
    assert first.copied_bytes == sum(
        path.stat().st_size for d in "ab" for path in (tmp_path / d).iterdir()
    )
    assert "copying records to" in capsys.readouterr().err
    assert [path.parent for path in first.files] == [first.directory] * 2
    again = local_copies(files, cache)
    assert (again.directory, again.files, again.copied_bytes) == (first.directory, first.files, 0)
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in cache.iterdir()) == sets(cache) == [first.directory.name]


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_changed_original_gets_a_new_copy(tmp_path, cache, record_maker, with_manifest):
    path = tmp_path / "data" / "0.tfrecord"

    def copied(first):
        record_maker.write(path, 4, first=first)
        os.utime(path, ns=(first, first))
        if with_manifest:
            record_maker.write_manifest(path.parent)
        return local_copies(opened(path), cache)

    before, after = copied(1), copied(2)
    assert before.directory != after.directory
    assert records_of(after) == RecordSet([path]).read(range(4))
    assert len(sets(cache)) == 2


def test_with_a_manifest_the_same_data_elsewhere_has_the_same_copy(tmp_path, cache, record_maker):
    record_maker.write(tmp_path / "data" / "0.tfrecord", 4)
    record_maker.write_manifest(tmp_path / "data")
    first = local_copies(opened(tmp_path / "data" / "0.tfrecord"), cache)
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    assert local_copies(opened(tmp_path / "moved" / "0.tfrecord"), cache).directory == (
        first.directory
    )


def test_an_original_that_its_manifest_does_not_describe_is_refused(tmp_path, cache, record_maker):
    path = record_maker.write(tmp_path / "data" / "0.tfrecord", 4)
    record_maker.write_manifest(path.parent)
    record_maker.write(path, 4, first=9)
    with pytest.raises(UserError, match=rf"{path} is not the file that manifest.json describes"):
        local_copies(opened(path), cache)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_copy_that_is_not_what_was_read_is_refused(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(local_cache, "digest_of_file", lambda path: "other")
    with pytest.raises(UserError, match="differs from what was written to it"):
        local_copies(opened(write(tmp_path / "a" / "x", [b"1"])), cache)
    assert sets(cache) == []


@pytest.mark.parametrize("damage", ["file missing", "file cut", "index missing", "index damaged"])
def test_a_set_that_was_tampered_with_is_made_again(tmp_path, cache, damage):
    files = opened(write(tmp_path / "a" / "x", [b"1", b"2"]))
    copies = local_copies(files, cache)
    if damage == "file missing":
        copies.files[0].unlink()
    elif damage == "file cut":
        os.truncate(copies.files[0], 3)
    elif damage == "index missing":
        (copies.directory / "set.json").unlink()
    else:
        (copies.directory / "set.json").write_text("{")
    again = local_copies(files, cache)
    assert again.copied_bytes > 0
    assert records_of(again) == [b"1", b"2"]


def make_three(tmp_path, cache):
    """Three sets of the same size, used in the order 1, 2, 0; the last one by this process."""
    files = [opened(write(tmp_path / str(n) / "x", [bytes([n]) * 1000])) for n in range(3)]
    copies = [local_copies(f, cache) for f in files]
    for age, number in ((100, 1), (200, 2), (300, 0)):
        os.utime(copies[number].directory / "set.json", (age, age))
    return files, copies


def test_the_least_recently_used_set_goes_first(tmp_path, cache):
    _, copies = make_three(tmp_path, cache)
    one = all_bytes(copies[0].directory)
    new = local_copies(
        opened(write(tmp_path / "3" / "x", [b"3" * 1000])), cache, most_bytes=3 * one + 100
    )
    # Used: that of this process (2) until now, which it no longer reads, and 0.
    left = {copies[2].directory.name, copies[0].directory.name, new.directory.name}
    assert set(sets(cache)) == left
    assert local_copies(opened(tmp_path / "0" / "x"), cache, most_bytes=3 * one).copied_bytes == 0


def hold(files, cache, held, done):
    local_copies(files, cache)
    held.set()
    done.wait(60)


def test_what_another_process_reads_stays(tmp_path, cache):
    files, copies = make_three(tmp_path, cache)
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    reader = context.Process(target=hold, args=(files[1], cache, held, done))
    reader.start()
    assert held.wait(60)
    os.utime(copies[1].directory / "set.json", (1, 1))  # the oldest, but in use
    one = all_bytes(copies[0].directory)
    wanted = opened(write(tmp_path / "3" / "x", [b"3" * 1000]))
    new = local_copies(wanted, cache, most_bytes=2 * one + 100)
    assert set(sets(cache)) == {copies[1].directory.name, new.directory.name}
    larger = opened(write(tmp_path / "4" / "x", [b"4" * 1500]))
    # There would be room without the set in use: nothing is removed in vain.
    with pytest.raises(NoRoomError, match=r"has room for .* not counting what other runs use"):
        local_copies(larger, cache, most_bytes=2 * one)
    assert set(sets(cache)) == {copies[1].directory.name, new.directory.name}
    reader.terminate()  # however it ends, its lock is gone
    reader.join()
    assert local_copies(larger, cache, most_bytes=2 * one).copied_bytes > 0


def test_more_than_the_limit_is_refused_and_nothing_is_removed(tmp_path, cache):
    make_three(tmp_path, cache)
    large = opened(write(tmp_path / "3" / "x", [b"3" * 9000]))
    with pytest.raises(NoRoomError, match=r"take 0\.0 GB, more than --local_cache_gb"):
        local_copies(large, cache, most_bytes=5000)
    assert len(sets(cache)) == 3


def test_a_disk_that_is_nearly_full(tmp_path, cache, monkeypatch):
    _, copies = make_three(tmp_path, cache)
    usage = SimpleNamespace(free=100)
    monkeypatch.setattr(local_cache.shutil, "disk_usage", lambda path: usage)
    local_copies(opened(write(tmp_path / "3" / "x", [b"3" * 1000])), cache)
    assert len(sets(cache)) == 3
    assert copies[1].directory.name not in sets(cache)
    with pytest.raises(NoRoomError, match="room for"):
        local_copies(opened(write(tmp_path / "4" / "x", [b"4" * 9000])), cache)
    assert len(sets(cache)) == 3


def test_a_disk_that_becomes_full(tmp_path, cache):
    files = opened(write(tmp_path / "a" / "x", [b"1" * 9000]))
    with no_room(5000), pytest.raises(NoRoomError, match="is full"):
        local_copies(files, cache)
    assert sorted(path.name for path in cache.glob("*")) == []
    assert local_copies(files, cache).copied_bytes > 9000


def test_what_a_killed_process_left_is_removed(tmp_path, cache):
    files = opened(write(tmp_path / "a" / "x", [b"1"]))
    (cache / ".partial-records-0").mkdir(parents=True)
    (cache / ".partial-records-0" / "00000-x").write_bytes(b"half")
    copies = local_copies(files, cache)
    assert [p.name for p in cache.iterdir()] == [copies.directory.name]


def test_files_of_the_user_are_left_alone(tmp_path, cache):
    cache.mkdir()
    (cache / "notes").write_text("mine")
    local_copies(opened(write(tmp_path / "a" / "x", [b"1"])), cache, most_bytes=200_000)
    assert (cache / "notes").read_text() == "mine"


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="--local_cache_dir: cannot write to"):
        local_copies(opened(write(tmp_path / "a" / "x", [b"1"])), tmp_path / "cache")


def test_the_index_says_where_copies_come_from(tmp_path, cache):
    path = write(tmp_path / "a" / "x", [b"1"])
    copies = local_copies(opened(path), cache)
    [entry] = json.loads((copies.directory / "set.json").read_text())["files"]
    assert entry["from"] == str(path)
