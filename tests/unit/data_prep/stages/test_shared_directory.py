"""Calls of a stage that each add files to one directory, one after the other and at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.durable.manifest import read_manifest, require_listed_files
from bert_tf.util.errors import UserError
from data_prep.stages.shared_directory import SharedDirectory
from tests.helpers.programs import ROOT
from tests.unit.durable.test_stage import Recorder, run_recorded, visible_in


@pytest.fixture(name="source")
def text_to_copy(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("some text")
    return path


def _add(output_dir, source, *names, build=None, **options):
    """A call that writes ``names`` beside what others write."""
    parameters = {"size": 1, "length": 8, "files": names, **options.pop("parameters", {})}
    shared = SharedDirectory("output_file", names, ("length",), ("size",))
    build = build or Recorder(*names, content=",".join(names))
    return run_recorded(output_dir, source, build, parameters=parameters, use=shared, **options)


def test_calls_one_after_the_other_fill_a_directory(tmp_path, source, capsys):
    out = tmp_path / "out"
    for names in (["b"], ["a", "a.offsets"], ["c"]):
        _add(out, source, *names)
    assert visible_in(out) == ["a", "a.offsets", "b", "c", "manifest.json"]
    manifest = read_manifest(out)
    assert [e.name for e in manifest.outputs] == ["a", "a.offsets", "b", "c"]
    assert manifest.counts == {"documents": 4}
    assert manifest.parameters == {"size": 1, "length": 8}
    assert [call.parameters["files"] for call in manifest.calls] == [
        ["a", "a.offsets"],
        ["b"],
        ["c"],
    ]
    require_listed_files(str(out))
    capsys.readouterr()
    build = Recorder("b")
    _add(out, source, "b", build=build)
    assert build.runs == 0
    assert f"{out / 'b'} is up to date, skipped" in capsys.readouterr().err
    assert not list(out.glob(".*"))


KILLED_AT_ITS_END = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bert_tf.util import directory_lock
from bert_tf.durable import stage
from data_prep.stages.shared_directory import SharedDirectory

unlink, remove = Path.unlink, directory_lock._remove

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at_the_list(path, **options):
    if path.name == ".stale.json":
        kill()
    unlink(path, **options)

def kill_at_the_lock(path, created):
    if path.parent.name.startswith(".partial"):
        kill()
    remove(path, created)

setattr(*{"moved": (stage, "write_manifest", kill), "listed": (Path, "unlink", kill_at_the_list),
          "emptied": (directory_lock, "_remove", kill_at_the_lock)}[sys.argv[4]])
inputs = [Path(sys.argv[3])]
shared = SharedDirectory("output_file", ("a",), ("length",), ("size",))

def build(directory, journal):
    (directory / "a").write_text("a")
    return stage.Built({"a": 1}, {"documents": 1})

parameters = {"size": 1, "length": 8, "files": ["a"]}
stage.run_stage("copy", sys.argv[2], parameters=parameters, inputs=inputs, build=build,
                use=shared, made_by={})
"""


@pytest.mark.parametrize("when", ["moved", "listed", "emptied"])
def test_a_shared_directory_has_no_leftovers_after_a_kill_at_the_end_of_a_call(
    tmp_path, source, when
):
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED_AT_ITS_END, str(ROOT), str(out), str(source), when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list(out.glob(".*"))
    build = Recorder("a", content="a")
    _add(out, source, "a", build=build)
    assert build.runs == (when == "moved")
    assert sorted(path.name for path in out.iterdir()) == ["a", "manifest.json"]


def test_the_manifest_does_not_depend_on_the_order_of_the_calls(tmp_path, source):
    for out, names in (("x", "abc"), ("y", "cab")):
        for name in names:
            _add(tmp_path / out, source, name)
    content = [(tmp_path / out / "manifest.json").read_bytes() for out in "xy"]
    assert content[0] == content[1]


def test_a_call_that_is_run_again_replaces_its_own_files(tmp_path, source):
    out = tmp_path / "out"
    for name in "ab":
        _add(out, source, name)
    alone = _add(tmp_path / "alone", source, "b")
    _add(out, source, "b", build=Recorder("b", content="new"), parameters={"size": 2})
    assert ((out / "a").read_text(), (out / "b").read_text()) == ("a", "new")
    assert [call.parameters["size"] for call in read_manifest(out).calls] == [1, 2]
    assert read_manifest(out).counts == {"documents": 2}
    _add(out, source, "a", "b", build=Recorder("b"))  # both, of which there is one
    assert visible_in(out) == ["b", "manifest.json"]
    assert "parts" not in json.loads((out / "manifest.json").read_text())
    assert "parts" not in json.loads((alone / "manifest.json").read_text())


def test_calls_that_contradict_each_other_are_refused(tmp_path, source, capsys):
    out = _add(tmp_path / "out", source, "a", "b")
    before = (out / "manifest.json").read_bytes()
    build = Recorder("c")
    with pytest.raises(UserError, match=r"^--output_file: .*a was made with length 8, not 9; use"):
        _add(out, source, "c", build=build, parameters={"length": 9})
    with pytest.raises(UserError, match=r"--output_file: .*b was made in one call with a and"):
        _add(out, source, "b", "c", build=build)
    with pytest.raises(UserError, match=r"--output_file: .*out holds the output of copy; choose"):
        _add(out, source, "c", build=build, stage="other")
    assert build.runs == 0
    assert (out / "manifest.json").read_bytes() == before
    capsys.readouterr()
    _add(out, source, "c", parameters={"size": 3})
    assert f"warning: {out / 'a'} was made with size 1, c with 3" in capsys.readouterr().err
    (out / "mine").write_text("precious")
    with pytest.raises(UserError, match=r"--output_file: .*mine exists and was not made by copy"):
        _add(out, source, "mine")
    assert (out / "mine").read_text() == "precious"
    assert not list(out.glob(".*"))


AT_ONCE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bert_tf.durable.stage import Built, run_stage
from data_prep.stages.shared_directory import SharedDirectory

out, source, name = sys.argv[2:]

def build(directory, journal):
    print("building", flush=True)
    sys.stdin.readline()
    (directory / name).write_text(name)
    return Built({name: 1}, {"documents": 1})

run_stage("copy", out, parameters={"files": [name]}, inputs=[Path(source)], build=build,
          use=SharedDirectory("output_file", (name,), ()), made_by={})
"""


def test_calls_at_once_fill_a_directory(tmp_path, source):
    out = tmp_path / "out"
    command = [sys.executable, "-c", AT_ONCE, str(ROOT), str(out), str(source)]
    names = [f"part-{number}" for number in range(6)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([*command, name], text=True, **pipes) for name in names]
    for process in processes:
        assert process.stdout.readline() == "building\n"  # now all are at it
    second = subprocess.run([*command, names[0]], input="", text=True, capture_output=True)
    assert "is in use by process" in second.stderr.splitlines()[-1]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == [""] * 6
    assert [entry.name for entry in read_manifest(out).outputs] == names
    assert read_manifest(out).counts == {"documents": 6}
    require_listed_files(str(out))
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("again", ["the same call", "another call"])
@pytest.mark.parametrize("step", range(7))
def test_a_call_stopped_anywhere_harms_no_other(tmp_path, source, monkeypatch, step, again):
    """A stop at each change of the directory: lists and manifests renamed, files moved, removed."""
    out = tmp_path / "out"
    for name in "abc":
        _add(out, source, name)
    calls = []

    def stopping(change):
        def stop(*paths, **options):
            if out in {Path(path).parent for path in paths} and not str(paths[0]).endswith("lock"):
                calls.append(paths)
                if len(calls) == step + 1:
                    raise KeyboardInterrupt
            change(*paths, **options)

        return stop

    monkeypatch.setattr(os, "replace", stopping(os.replace))
    monkeypatch.setattr(Path, "unlink", stopping(Path.unlink))
    changed = {"build": Recorder("b", content="new"), "parameters": {"size": 2}}
    with pytest.raises(KeyboardInterrupt):
        _add(out, source, "b", **changed)
    monkeypatch.undo()
    assert {"a", "c"} <= read_manifest(out).output_names
    if again == "another call":
        _add(out, source, "d")
        require_listed_files(str(out))
    _add(out, source, "b", **changed)
    require_listed_files(str(out))
    expected = ["a", "b", "c", *(["d"] if again == "another call" else [])]
    assert [entry.name for entry in read_manifest(out).outputs] == expected
    assert (out / "b").read_text() == "new"
    _add(out, source, "e")
    assert not list(out.glob(".*"))
