"""Temporary directories belong to one user, and go with the process that made them."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from bert_tf.util.temporary import (
    TemporaryDirectory,
    make_private,
    remove_abandoned,
    require_private,
)
from tests.helpers.programs import ROOT, environment

HOLD = """
import os, signal
from bert_tf.util.temporary import TemporaryDirectory
made = [TemporaryDirectory(kind) for kind in ("weights", "rank")]
print(*[directory.name for directory in made], flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def shared(tmp_path, monkeypatch):
    """The directory for temporary files of all users."""
    directory = tmp_path / "shared"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def mode_of(path):
    return path.stat().st_mode & 0o777


def test_a_private_directory_is_made_once(shared):
    path = shared / "a"
    make_private(path)
    assert mode_of(path) == 0o700
    path.chmod(0o755)  # as an earlier version made it
    make_private(path)
    assert mode_of(path) == 0o700


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("link", "a link or a file"),
        ("file", "a link or a file"),
        ("writable", "other users can write"),
        ("other user's", "another user"),
    ],
)
def test_what_others_could_have_made_is_refused(shared, monkeypatch, found, reason):
    path, mine = shared / "a", shared / "mine"
    mine.mkdir(mode=0o700)
    if found == "link":
        path.symlink_to(mine)
    elif found == "file":
        path.touch()
    else:
        path.mkdir()
        path.chmod(0o777 if found == "writable" else 0o700)
    if found == "other user's":
        monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    for check in (make_private, require_private):
        with pytest.raises(PermissionError, match=reason):
            check(path)
    assert mode_of(mine) == 0o700


def test_what_a_killed_process_left_is_removed_and_nothing_of_a_live_one(shared):
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(shared)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        names = {os.path.basename(name) for name in program.stdout.readline().split()}
        assert {path.name for path in shared.iterdir()} == names
        with TemporaryDirectory("weights") as own:
            remove_abandoned()
            assert len(list(shared.iterdir())) == 3
            program.kill()
            program.wait()
            remove_abandoned()
            assert list(map(str, shared.iterdir())) == [own]
    assert program.returncode == -signal.SIGKILL
    assert list(shared.iterdir()) == []


def test_only_what_this_module_made_is_removed(shared, tmp_path):
    kept = tmp_path / "mine"
    kept.mkdir()
    (kept / ".in_use").touch()
    (shared / "bert_tf_weights_x").symlink_to(kept)
    (shared / "bert_tf_unlocked").mkdir()
    (shared / "other").mkdir()
    (shared / "other" / ".in_use").touch()
    remove_abandoned()
    assert len(list(shared.iterdir())) == 3
    assert (kept / ".in_use").exists()
