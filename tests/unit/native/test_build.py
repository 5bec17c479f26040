"""From a source to a library that is loaded, or to one sentence."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bert_tf.native import build as build_module
from bert_tf.native import library
from bert_tf.native.build import build
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, environment
from tests.helpers.terminals import is_running

pytestmark = pytest.mark.each_tensorflow

SMALL_SOURCE = """
#include "tensorflow/core/framework/op.h"
REGISTER_OP("BertTfNothingForTests");
"""

requires_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "small_ops.cc"
    path.write_text(SMALL_SOURCE)
    return path


def compiler_of(tmp_path, script):
    """A program in place of a compiler."""
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return [str(path)]


def test_a_library_belongs_to_its_source_and_what_that_includes(source):
    names = [library.library_path(source)]
    source.write_text(SMALL_SOURCE + "\n")
    names.append(library.library_path(source))
    source.with_name("part.inc").write_text("// included")
    names.append(library.library_path(source))
    assert len(set(names)) == 3
    assert {path.parent for path in names} == {source.parent}


def test_a_library_belongs_to_a_version_of_tensorflow(source, monkeypatch):
    import tensorflow.compat.v1 as tf

    before = library.library_path(source)
    monkeypatch.setattr(tf.version, "VERSION", "2.16.0")
    assert library.library_path(source) != before


def test_what_was_not_built_is_missing(source):
    import tensorflow.compat.v1 as tf

    version = re.escape(tf.version.VERSION)
    with pytest.raises(
        library.MissingLibrary, match=rf"not built for TensorFlow {version} .*native\.build"
    ):
        library.load(source)


def test_what_is_no_library_is_said(source):
    library.library_path(source).write_text("no library")
    with pytest.raises(library.MissingLibrary, match=r"small_ops-.*\.so cannot be loaded"):
        library.load(source)


@requires_compiler
def test_a_source_is_built_once_and_loaded(source, tmp_path):
    path = build(["g++"], source)
    assert path == library.library_path(source)
    assert hasattr(library.load(source), "bert_tf_nothing_for_tests")
    assert build(["/no/such/compiler"], source) == path
    assert sorted(tmp_path.iterdir()) == sorted([source, path])


@pytest.fixture
def installed_for_all(source, tmp_path, monkeypatch):
    """A source whose directory cannot be written, and the cache of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != source.parent)
    return tmp_path / "cache/bert_tf/native"


@requires_compiler
@pytest.mark.exhaustive
def test_a_library_is_in_the_cache_if_the_package_cannot_be_written(source, installed_for_all):
    path = build(["g++"], source)
    assert path.parent == installed_for_all
    assert path.parent.stat().st_mode & 0o777 == 0o700
    library.load(source)
    assert build(["/no/such/compiler"], source) == path


def test_a_library_that_others_can_replace_is_not_loaded(source, installed_for_all):
    installed_for_all.mkdir(parents=True)
    library.library_path(source).write_text("a stranger's")
    installed_for_all.chmod(0o777)
    with pytest.raises(library.MissingLibrary, match=r"not used .other users can write to it"):
        library.load(source)


def test_a_cache_that_cannot_be_written_is_one_sentence(source, installed_for_all):
    installed_for_all.parents[1].touch()
    with pytest.raises(UserError, match=r"written to .*cache/bert_tf/native \(.*\); set XDG_CACHE"):
        build(["g++"], source)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo >&2 'x.cc:1: error: no good'; exit 1", r"cannot compile small_ops.cc \(x.cc:1: err"),
        ("exit 3", r"cannot compile small_ops.cc \(no message\)"),
        ("while [ $1 != -o ]; do shift; done; echo >$2", "cannot be loaded .* CXX"),
    ],
)
def test_a_compiler_that_fails_is_one_sentence(source, tmp_path, script, message):
    with pytest.raises(UserError, match=message) as caught:
        build(compiler_of(tmp_path, script), source)
    assert "\n" not in str(caught.value)
    assert not library.library_path(source).exists()
    assert not list(tmp_path.glob(".*"))


def test_no_compiler_is_one_sentence(source):
    with pytest.raises(UserError, match=r"no C\+\+ compiler \(/no/such\) could be started .* CXX"):
        build(["/no/such"], source)


def test_a_directory_that_cannot_be_written_is_one_sentence(source, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(source), "touch", refuse)
    with pytest.raises(UserError, match=r"cannot be written to .* \(Permission denied\)"):
        build(["g++"], source)


# A compiler that takes long, with a program of its own; "compiler" is where it notes both.
SLOW = 'echo begin > "$0.began"; sleep 600 & echo $! > "$0.child"; wait'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_compilers_and_leaves_nothing(tmp_path, number):
    compiler = compiler_of(tmp_path, SLOW)[0]
    room = copy_of_the_room(tmp_path)
    before = set(room.iterdir())
    program = start_build(tmp_path, compiler)
    with program:
        assert program.stdout.readline().startswith("compiling block_ops.cc, update_ops.cc")
        child = tmp_path / "compiler.child"
        wait_for(lambda: child.exists() and child.read_text().strip())
        wait_for(lambda: len(set(room.iterdir()) - before) > 0)
        program.send_signal(number)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + number
    assert said == ""
    assert {path for path in room.iterdir() if path.name != "__pycache__"} == {
        path for path in before if path.name != "__pycache__"
    }
    wait_for(lambda: not is_running(int(child.read_text())))


def test_a_compiler_that_starts_after_the_signal_is_ended(source, tmp_path, monkeypatch):
    ended = threading.Event()
    ended.set()
    monkeypatch.setattr(build_module, "_ended", ended)
    with pytest.raises(UserError, match="cannot compile"):
        build(compiler_of(tmp_path, SLOW), source)
    assert not list(source.parent.glob("*.so"))


def test_progress_is_shown_while_it_compiles(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_module, "_SECONDS_BETWEEN_LINES", 0.2)
    monkeypatch.setattr(build_module, "build", lambda _, source: time.sleep(0.5) or source)
    build_module._build_all()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "compiling block_ops.cc, update_ops.cc (minutes)"
    assert "compiling 2 of 2, 0s" in lines
    assert len([line for line in lines if line.startswith("built ")]) == 2


def copy_of_the_room(tmp_path):
    shutil.copytree(
        ROOT / "bert_tf", tmp_path / "bert_tf", ignore=shutil.ignore_patterns("*.so", ".*")
    )
    return tmp_path / "bert_tf/native"


def start_build(tmp_path, compiler):
    return subprocess.Popen(
        [sys.executable, "-m", "bert_tf.native.build"],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(tmp_path), "CXX": compiler},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_the_command_ends_with_status_2_and_one_line(tmp_path):
    """In a copy of the room, where nothing is built."""
    copy_of_the_room(tmp_path)
    program = start_build(tmp_path, f"{os.devnull} -x")
    _, said = program.communicate(timeout=300)
    assert program.returncode == 2
    assert said.startswith("error: no C++ compiler (/dev/null)")
    assert len(said.splitlines()) == 1
