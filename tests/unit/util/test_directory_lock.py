"""One run a directory, with holders that are other processes, dead, or on other hosts."""

import errno
import json
import os
import signal
import threading

import pytest

from bert_tf.util import directory_lock
from bert_tf.util.directory_lock import LOCK_NAME, hold_directory
from bert_tf.util.errors import UserError
from tests.helpers.programs import holder_of


@pytest.fixture
def holder(tmp_path):
    """Another process that holds ``tmp_path / "model"``."""
    with holder_of(tmp_path / "model") as process:
        yield process


def hold(directory, **options):
    """Who held the directory before."""
    with hold_directory(directory, flag="output_dir", **options) as before:
        assert json.loads((directory / LOCK_NAME).read_text())["process"] == os.getpid()
        return before


def write_holder(directory, host):
    directory.mkdir(exist_ok=True)
    holder = {"host": host, "process": 7, "since": "2020-01-01 00:00:00"}
    (directory / LOCK_NAME).write_text(json.dumps(holder))


def test_a_directory_is_made_and_left_as_it_was(tmp_path):
    directory = tmp_path / "a" / "b"
    assert hold(directory) is None
    assert list(tmp_path.iterdir()) == []
    directory.mkdir(parents=True)
    assert hold(directory) is None
    assert list(directory.iterdir()) == []


def test_what_was_written_stays(tmp_path):
    with hold_directory(tmp_path / "a", flag="output_dir"):
        (tmp_path / "a" / "file").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def test_a_second_run_is_refused_by_host_and_process(tmp_path, holder):
    where = rf"{tmp_path}/model is in use by process {holder.pid} on host {os.uname().nodename} "
    for _ in range(2):  # looking does not take the lock away
        with pytest.raises(UserError, match=rf"^--output_dir: {where}\(since 20"):
            hold(tmp_path / "model")
    holder.communicate("")
    assert hold(tmp_path / "model") is None


def test_a_killed_run_leaves_a_lock_that_is_taken_over(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    before = hold(tmp_path / "model")
    assert (before.host, before.process) == (os.uname().nodename, holder.pid)
    assert hold(tmp_path / "model") is None


def test_what_a_killed_holder_was_writing_is_removed(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    for name in (".run.json.7.tmp", "..stale.json.7.tmp", "notes.7.tmp"):
        (directory / name).touch()
    hold(directory)
    assert [path.name for path in directory.iterdir()] == ["notes.7.tmp"]


def test_a_lost_host_gives_no_signs(tmp_path):
    write_holder(tmp_path, "lost-host")
    assert str(hold(tmp_path, heartbeat_seconds=0.01)).startswith("process 7 on host lost-host")


def test_a_file_server_may_keep_the_lock_of_a_lost_host(tmp_path, holder):
    """The lock cannot be had, but its holder is on another host and gives no signs."""
    path = tmp_path / "model" / LOCK_NAME
    holder.send_signal(signal.SIGSTOP)
    with open(path, "r+") as file:
        file.write(json.dumps({"host": "lost-host", "process": 7, "since": "then"}).ljust(200))
    before = hold(tmp_path / "model", heartbeat_seconds=0.01)
    assert (before.host, before.process) == ("lost-host", 7)


def test_of_several_that_wait_for_a_lost_host_one_removes_its_lock(tmp_path, holder, monkeypatch):
    path = tmp_path / "model" / LOCK_NAME
    holder.send_signal(signal.SIGSTOP)
    with open(path, "r+") as file:
        file.write(json.dumps({"host": "lost-host", "process": 7, "since": "then"}).ljust(200))

    def another_is_first(*_):
        path.unlink()
        path.touch()
        os.link(path, tmp_path / "of_another")
        return False

    monkeypatch.setattr(directory_lock, "_has_heartbeat", another_is_first)
    with hold_directory(tmp_path / "model", flag="output_dir", wait=True):
        assert os.path.samefile(path, tmp_path / "of_another")


def signs_of_another_host(path, ended):
    """Renews the file as a holder does that this host's locks know nothing of."""
    stamp = 0
    while not ended.wait(0.001):
        stamp += 10**9
        os.utime(path, ns=(stamp, stamp))


@pytest.mark.parametrize("host", ["busy-host", os.uname().nodename])
def test_signs_of_life_refuse_where_locks_say_nothing(tmp_path, monkeypatch, host):
    """Disks that do not carry locks between hosts, and disks that know none at all."""
    write_holder(tmp_path, host)
    if host != "busy-host":

        def no_locks(*_):
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(directory_lock.fcntl, "lockf", no_locks)
    ended = threading.Event()
    thread = threading.Thread(target=signs_of_another_host, args=(tmp_path / LOCK_NAME, ended))
    thread.start()
    try:
        with pytest.raises(UserError, match=f"in use by process 7 on host {host}"):
            hold(tmp_path, heartbeat_seconds=0.5)
    finally:
        ended.set()
        thread.join()
    assert json.loads((tmp_path / LOCK_NAME).read_text())["process"] == 7


def test_a_holder_gives_signs(tmp_path):
    with hold_directory(tmp_path, flag="output_dir", heartbeat_seconds=0.01):
        path = tmp_path / LOCK_NAME
        os.utime(path, ns=(0, 0))
        while path.stat().st_mtime_ns == 0:
            pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "x"}', "\xff"])
def test_a_lock_without_a_name_in_it_is_nobodys(tmp_path, content):
    (tmp_path / LOCK_NAME).write_bytes(content.encode("latin-1"))
    assert hold(tmp_path) is None


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--output_dir: cannot write to .*file/model \(Not a dir"):
        hold(tmp_path / "file" / "model")


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("not to be overwritten")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / LOCK_NAME).symlink_to(mine)
    lock = hold_directory(tmp_path / "shared", flag="output_dir")
    with pytest.raises(UserError, match=r"cannot write to .*shared"), lock:
        pass
    assert mine.read_text() == "not to be overwritten"


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory_lock.os, "pwrite", full)
    with pytest.raises(UserError, match=r"cannot write to .*\(No space left on device\); free"):
        hold(tmp_path)


def test_who_waits_gets_the_lock_when_it_is_free(tmp_path, holder, capsys, monkeypatch):
    """Also where the holder removes the directory at its end, because it is empty."""
    tries = []

    def sleep(seconds):
        tries.append(seconds)
        if len(tries) == 12:
            holder.communicate("")

    monkeypatch.setattr(directory_lock.time, "sleep", sleep)
    assert hold(tmp_path / "model", wait=True) is None
    assert len(tries) == 12
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'model'} is in use by process {holder.pid} on host ")
    assert line.endswith("); waiting for it to end")
