"""Stages: skipping, replacing, and what a run that was stopped anywhere leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.durable.manifest import read_manifest, require_listed_files
from bert_tf.durable.sealed_json import SEAL
from bert_tf.durable.stage import Built, remove_outputs, run_stage
from bert_tf.util.errors import UserError
from data_prep.stages.shared_directory import SharedDirectory
from tests.helpers.files import no_room
from tests.helpers.programs import holder_of

ROOT = Path(__file__).parents[3]


class Recorder:
    """A stage that writes ``names`` with ``content`` and counts how often it was run."""

    def __init__(self, *names, content="text"):
        self.names, self.content, self.runs = names, content, 0

    def __call__(self, directory):
        self.runs += 1
        assert list(directory.iterdir()) == []
        for name in self.names:
            (directory / name).write_text(self.content)
        return Built(dict.fromkeys(self.names, 1), {"documents": len(self.names)})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("some text")
    return path


def _run(output_dir, source, build, **options):
    options = {"parameters": {"size": 1}, "inputs": [source], "made_by": {}, **options}
    return run_stage(options.pop("stage", "copy"), output_dir, build=build, **options)


OLD, NEW = {"stage": "1", "sentencex": "0.9"}, {"stage": "1", "sentencex": "1.0"}


@pytest.mark.parametrize(
    ("before", "now", "choice", "runs", "said"),
    [
        (OLD, OLD, "remake", 1, "is up to date, skipped\n"),
        (OLD, NEW, "remake", 2, "was made by sentencex 0.9 (now 1.0), and is made again (--other"),
        (OLD, NEW, "keep", 1, "is kept, though it was made by sentencex 0.9 (now 1.0)\n"),
        ({}, NEW, "remake", 1, "skipped (the versions that made it are not recorded)\n"),
    ],
)
def test_output_of_other_versions(tmp_path, source, capsys, before, now, choice, runs, said):
    build = Recorder("a")
    _run(tmp_path / "out", source, build, made_by=before)
    _run(tmp_path / "out", source, build, made_by=now, other_versions=choice)
    assert build.runs == runs
    assert said in capsys.readouterr().err
    kept = now if runs == 2 else before
    assert read_manifest(tmp_path / "out").made_by == kept


def _visible(directory):
    return sorted(path.name for path in directory.iterdir() if path.name[0] != ".")


def test_outputs_and_manifest(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    assert _visible(out) == ["a.txt", "b.txt", "manifest.json"]
    manifest = read_manifest(out)
    assert (manifest.stage, manifest.parameters) == ("copy", {"size": 1})
    assert [(e.name, e.bytes, e.count) for e in manifest.outputs] == [
        ("a.txt", 4, 1),
        ("b.txt", 4, 1),
    ]
    assert [entry.name for entry in manifest.inputs] == ["input.txt"]
    assert manifest.counts == {"documents": 2}


def test_second_run_is_skipped_and_says_so(tmp_path, source, capsys):
    build = Recorder("a.txt")
    _run(tmp_path / "out", source, build)
    assert "skipped" not in capsys.readouterr().err
    _run(tmp_path / "out", source, build)
    assert build.runs == 1
    assert capsys.readouterr().err == f"copy: {tmp_path / 'out'} is up to date, skipped\n"


@pytest.mark.parametrize("change", ["parameter", "input", "lost output", "cut output", "manifest"])
def test_any_change_runs_the_stage_again(tmp_path, source, change):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    options = {}
    if change == "parameter":
        options["parameters"] = {"size": 2}
    elif change == "input":
        source.write_text("SOME text")
    elif change == "lost output":
        (out / "a.txt").unlink()
    elif change == "cut output":
        (out / "a.txt").write_text("t")
    else:
        (out / "manifest.json").unlink()
        (out / "a.txt").unlink()
    build = Recorder("a.txt", content="again")
    _run(out, source, build, **options)
    assert build.runs == 1
    assert (out / "a.txt").read_text() == "again"
    _run(out, source, build, **options)
    assert build.runs == 1


def test_files_of_the_earlier_parameters_go_and_others_stay(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    (out / "notes").write_text("mine")
    _run(out, source, Recorder("b.txt", "c.txt"), parameters={"size": 2})
    assert _visible(out) == ["b.txt", "c.txt", "manifest.json", "notes"]


def test_failure_leaves_the_earlier_outputs(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))

    def fail(directory):
        (directory / "b.txt").write_text("half")
        raise UserError("no more.")

    with pytest.raises(UserError, match="no more"):
        _run(out, source, fail, parameters={"size": 2})
    assert _visible(out) == ["a.txt", "manifest.json"]
    assert not (out / ".partial").exists()
    build = Recorder("a.txt")
    _run(out, source, build)
    assert build.runs == 0


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bert_tf.durable import stage

def build(directory):
    (directory / "new.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

inputs = [Path(sys.argv[3])]
stage.run_stage("copy", sys.argv[2], parameters={"size": 2}, inputs=inputs, build=build,
                made_by={})
"""


@pytest.mark.parametrize("before", [False, True])
def test_killed_run_is_not_taken_as_finished(tmp_path, source, before):
    out = tmp_path / "out"
    if before:
        _run(out, source, Recorder("a.txt"))
    command = [sys.executable, "-c", KILLED, str(ROOT), str(out), str(source)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert _visible(out) == (["a.txt", "manifest.json"] if before else [])
    build = Recorder("new.txt", content="whole")
    _run(out, source, build, parameters={"size": 2})
    assert build.runs == 1
    assert _visible(out) == ["manifest.json", "new.txt"]
    assert (out / "new.txt").read_text() == "whole"
    assert not (out / ".partial").exists()


@pytest.mark.parametrize("step", range(4))
def test_stop_while_outputs_are_moved_leaves_nothing_for_good(tmp_path, source, monkeypatch, step):
    """A stop at each of the moves: two outputs, then the manifest's own rename."""
    out = _run(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    replace, calls = os.replace, []

    def stop(*paths):
        calls.append(paths)
        if len(calls) == step + 1:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        _run(out, source, Recorder("b.txt", "c.txt"), parameters={"size": 2})
    monkeypatch.undo()
    finished = (out / "manifest.json").exists()
    assert finished == (step == 0)  # the first rename writes the list of what is being replaced
    build = Recorder("d.txt")
    _run(out, source, build, parameters={"size": 3})
    assert build.runs == 1
    assert _visible(out) == ["d.txt", "manifest.json"]
    assert not (out / ".stale.json").exists()


@pytest.mark.parametrize("step", range(4))
def test_stop_while_outputs_are_removed_leaves_nothing_for_good(
    tmp_path, source, monkeypatch, step
):
    """A stop at each removal: the manifest, two outputs, the list of what is being removed."""
    out = _run(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    (out / "notes").write_text("mine")
    unlink, removed = Path.unlink, []

    def stop(path, **options):
        if path.parent == out and not path.name.endswith(".tmp"):
            removed.append(path)
            if len(removed) == step + 1:
                raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", stop)
    with pytest.raises(KeyboardInterrupt):
        remove_outputs("copy", out)
    monkeypatch.undo()
    remove_outputs("copy", out)
    assert _visible(out) == ["notes"]
    assert not (out / ".stale.json").exists()


def test_only_outputs_of_the_stage_are_removed(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    remove_outputs("other", out)
    assert _visible(out) == ["a.txt", "manifest.json"]
    remove_outputs("copy", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_of_the_user_is_never_replaced(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    (out / "vocab.txt").write_text("precious")
    with pytest.raises(UserError, match=r"vocab\.txt exists and was not made by copy"):
        _run(out, source, Recorder("vocab.txt"))
    assert (out / "vocab.txt").read_text() == "precious"
    assert _visible(out) == ["vocab.txt"]


def test_directory_of_another_stage_is_refused(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    with pytest.raises(UserError, match="holds the output of copy; choose another directory"):
        _run(out, source, Recorder("b.txt"), stage="other")
    assert _visible(out) == ["a.txt", "manifest.json"]


def test_directory_in_use_is_refused(tmp_path, source):
    out = tmp_path / "out"
    with (
        holder_of(out) as process,
        pytest.raises(UserError, match=f"out is in use by process {process.pid} on host"),
    ):
        _run(out, source, Recorder("a.txt"))
    _run(out, source, Recorder("a.txt"))


def test_output_dir_that_is_a_file_is_refused(tmp_path, source):
    with pytest.raises(UserError, match="--output_dir: cannot write to"):
        _run(source, source, Recorder("a.txt"))


def test_a_damaged_manifest_is_named_before_the_work(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    path = out / "manifest.json"
    path.write_text(path.read_text().replace('"documents": 1', '"documents": 3'))
    build = Recorder("a.txt")
    with pytest.raises(UserError, match=rf"{path} does not match .* delete its directory and make"):
        _run(out, source, build)
    assert build.runs == 0


def test_a_damaged_input_is_named_before_the_work(tmp_path, source):
    """Of the size that it had as another stage made it."""
    made = _run(tmp_path / "made", source, Recorder("a.txt", content="text")) / "a.txt"
    build = Recorder("b.txt")
    _run(tmp_path / "out", made, build)
    made.write_text("tezt")
    with pytest.raises(UserError, match=rf"{made} is not the file that .*manifest.json lists"):
        _run(tmp_path / "out", made, build)
    assert build.runs == 1
    (made.parent / "manifest.json").unlink()
    _run(tmp_path / "out", made, build)
    assert build.runs == 2


OUTSIDE = [
    "../precious",
    "sub/../../precious",
    "{outside}/precious",
    "link/precious",
    "",
    ".",
    "..",
]


def _name_outside(tmp_path, source, name, where):
    """A finished directory whose manifest or list of replaced files names ``name`` as well."""
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    (tmp_path / "precious").write_text("mine")
    (out / "link").symlink_to(tmp_path)
    (out / "sub").mkdir()
    name = name.format(outside=tmp_path)
    if where == "manifest":
        content = json.loads((out / "manifest.json").read_text())
        del content[SEAL]  # as earlier versions wrote it
        content["outputs"].append({**content["outputs"][0], "name": name})
        (out / "manifest.json").write_text(json.dumps(content))
    else:
        (out / ".stale.json").write_text(json.dumps(["a.txt", name]))
    return out


@pytest.mark.parametrize("where", ["manifest", "stale list"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_of_the_directory_is_removed(tmp_path, source, name, where):
    out = _name_outside(tmp_path, source, name, where)
    before = sorted(out.iterdir())
    build = Recorder("b.txt")
    listed = "manifest.json" if where == "manifest" else ".stale.json"
    with pytest.raises(UserError, match=rf"{listed} lists .* not the name of a file in its dir"):
        _run(out, source, build, parameters={"size": 2})
    with pytest.raises(UserError, match="not the name of a file in its directory"):
        remove_outputs("copy", out)
    assert build.runs == 0
    assert sorted(out.iterdir()) == before
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("where", ["manifest", "stale list"])
def test_a_directory_that_is_listed_as_a_file_is_refused(tmp_path, source, where):
    out = _name_outside(tmp_path, source, "sub", where)
    build = Recorder("b.txt")
    for attempt in (
        lambda: _run(out, source, build, parameters={"size": 2}),
        lambda: remove_outputs("copy", out),
    ):
        with pytest.raises(UserError, match="sub is a directory, but listed as a file"):
            attempt()
    assert build.runs == 0
    assert _visible(out) == ["a.txt", "link", "manifest.json", "sub"]


@pytest.mark.parametrize("content", ['{"a.txt": 1}', "[1]", '[["a.txt"]]', '"a.txt"'])
def test_a_malformed_list_of_replaced_files_is_refused(tmp_path, source, content):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    (out / ".stale.json").write_text(content)
    with pytest.raises(UserError, match=r"\.stale\.json .* delete it"):
        _run(out, source, Recorder("b.txt"), parameters={"size": 2})
    assert _visible(out) == ["a.txt", "manifest.json"]


def test_a_listed_link_goes_and_its_target_stays(tmp_path, source):
    out = _run(tmp_path / "out", source, Recorder("a.txt"))
    (tmp_path / "elsewhere").mkdir()
    (out / "a.txt").unlink()
    (out / "a.txt").symlink_to(tmp_path / "elsewhere")
    _run(out, source, Recorder("b.txt"), parameters={"size": 2})
    assert _visible(out) == ["b.txt", "manifest.json"]
    assert (tmp_path / "elsewhere").is_dir()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, source):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=f"cannot write {out} .File too large"), no_room(3):
        _run(out, source, Recorder("a.txt"))
    assert _visible(tmp_path / "out") == []
    assert not (tmp_path / "out" / ".partial").exists()


def test_an_input_that_is_gone_is_not_taken_for_an_output(tmp_path, source):
    with pytest.raises(FileNotFoundError):
        _run(tmp_path / "out", source, lambda _: Path(tmp_path / "gone").read_text())


def _add(output_dir, source, *names, build=None, **options):
    """A call that writes ``names`` beside what others write."""
    parameters = {"size": 1, "length": 8, "files": names, **options.pop("parameters", {})}
    shared = SharedDirectory("output_file", names, ("length",), ("size",))
    build = build or Recorder(*names, content=",".join(names))
    return _run(output_dir, source, build, parameters=parameters, use=shared, **options)


def test_calls_one_after_the_other_fill_a_directory(tmp_path, source, capsys):
    out = tmp_path / "out"
    for names in (["b"], ["a", "a.offsets"], ["c"]):
        _add(out, source, *names)
    assert _visible(out) == ["a", "a.offsets", "b", "c", "manifest.json"]
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

def build(directory):
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
    assert _visible(out) == ["b", "manifest.json"]
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

def build(directory):
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
