"""Numbered versions: several at once, and after kills."""

from __future__ import annotations

import os
import threading

import pytest

from bert_tf.serving.export import choose_version, new_version
from bert_tf.util.errors import UserError
from tests.helpers.kills import killed_at


def write(export_dir, version=None):
    with new_version(export_dir, version) as (target, temporary):
        temporary.mkdir()
        (temporary / "model").write_text(str(os.getpid()))
    return target


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_versions_are_numbered(tmp_path):
    assert [write(tmp_path / "out").name for _ in range(3)] == ["1", "2", "3"]
    assert write(tmp_path / "out", 7).name == "7"
    with pytest.raises(UserError, match="7 already exists"):
        write(tmp_path / "out", 7)
    with pytest.raises(UserError, match="must be at least 1"):
        choose_version(tmp_path / "out", 0)
    assert names(tmp_path / "out") == ["1", "2", "3", "7"]


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
    number = 0
    while killed_at(number, lambda: write(tmp_path)):
        number += 1
        write(tmp_path)
        assert all(name.isdecimal() for name in names(tmp_path)), names(tmp_path)
    assert number > 5


def test_an_export_waits_for_another_one_and_takes_the_next_number(tmp_path):
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with new_version(tmp_path, None) as (_, temporary):
            temporary.mkdir()
            os.write(ready[1], b"1")
            os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    found = []
    waiting = threading.Thread(target=lambda: found.append(write(tmp_path).name))
    waiting.start()
    waiting.join(0.3)
    assert not found
    os.write(done[1], b"1")
    waiting.join(30)
    assert os.waitpid(child, 0)[1] == 0
    assert found == ["2"]
    assert names(tmp_path) == ["1", "2"]
