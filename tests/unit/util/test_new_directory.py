"""Directories that appear whole, and what kills leave of them."""

from __future__ import annotations

import pytest

from bert_tf.util.files import remove_partial_files
from bert_tf.util.new_directory import atomic_directory
from tests.helpers.kills import killed_at


def test_a_directory_appears_whole_and_what_a_kill_left_is_removed(tmp_path):
    def make(directory):
        directory.mkdir()
        for name in "ab":
            (directory / name).write_text(name)

    def write():
        with atomic_directory(tmp_path / "model", tmp_path) as directory:
            make(directory)

    for number in range(3):
        assert killed_at(number + 1, write)
        assert [path.name[:7] for path in tmp_path.iterdir()] == [".model."]
        assert len(remove_partial_files(tmp_path)) == 1
    (tmp_path / "model").mkdir()
    write()
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["a", "b"]
    with pytest.raises(OSError, match="not empty"):
        write()
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
