"""Stages: skipping, replacing, and what a run that was stopped anywhere leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.durable.manifest import VocabularyEntry, read_manifest
from bert_tf.durable.sealed_json import SEAL
from bert_tf.durable.stage import Built, remove_outputs, run_stage
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.programs import holder_of

ROOT = Path(__file__).parents[3]


class Recorder:
    """A stage that writes ``names`` with ``content`` and counts how often it was run."""

    def __init__(self, *names, content="text"):
        self.names, self.content, self.runs = names, content, 0

    def __call__(self, directory, journal=None):
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


def run_recorded(output_dir, source, build, **options):
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
    run_recorded(tmp_path / "out", source, build, made_by=before)
    run_recorded(tmp_path / "out", source, build, made_by=now, other_versions=choice)
    assert build.runs == runs
    assert said in capsys.readouterr().err
    kept = now if runs == 2 else before
    assert read_manifest(tmp_path / "out").made_by == kept


def visible_in(directory):
    return sorted(path.name for path in directory.iterdir() if path.name[0] != ".")


def test_outputs_and_manifest(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    assert visible_in(out) == ["a.txt", "b.txt", "manifest.json"]
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
    run_recorded(tmp_path / "out", source, build)
    assert "skipped" not in capsys.readouterr().err
    run_recorded(tmp_path / "out", source, build)
    # Also of an input that was moved.
    run_recorded(tmp_path / "out", source.rename(tmp_path / "moved.txt"), build)
    assert build.runs == 1
    assert capsys.readouterr().err == f"copy: {tmp_path / 'out'} is up to date, skipped\n" * 2


@pytest.mark.parametrize(
    "change",
    ["parameter", "input", "no input", "vocabulary", "lost output", "cut output", "manifest"],
)
def test_any_change_runs_the_stage_again(tmp_path, source, change):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
    options = {}
    if change == "parameter":
        options["parameters"] = {"size": 2}
    elif change == "input":
        source.write_text("SOME text")
    elif change == "no input":
        options["inputs"] = []
    elif change == "vocabulary":
        options["vocabulary"] = VocabularyEntry("ab", 10, "wordpiece", True, {"pad": 0})
    elif change == "lost output":
        (out / "a.txt").unlink()
    elif change == "cut output":
        (out / "a.txt").write_text("t")
    else:
        (out / "manifest.json").unlink()
        (out / "a.txt").unlink()
    build = Recorder("a.txt", content="again")
    run_recorded(out, source, build, **options)
    assert build.runs == 1
    assert (out / "a.txt").read_text() == "again"
    run_recorded(out, source, build, **options)
    assert build.runs == 1


def test_files_of_the_earlier_parameters_go_and_others_stay(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    (out / "notes").write_text("mine")
    run_recorded(out, source, Recorder("b.txt", "c.txt"), parameters={"size": 2})
    assert visible_in(out) == ["b.txt", "c.txt", "manifest.json", "notes"]


def test_failure_leaves_the_earlier_outputs(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))

    def fail(directory):
        (directory / "b.txt").write_text("half")
        raise UserError("no more.")

    with pytest.raises(UserError, match="no more"):
        run_recorded(out, source, fail, parameters={"size": 2})
    assert visible_in(out) == ["a.txt", "manifest.json"]
    assert not (out / ".partial").exists()
    build = Recorder("a.txt")
    run_recorded(out, source, build)
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
        run_recorded(out, source, Recorder("a.txt"))
    command = [sys.executable, "-c", KILLED, str(ROOT), str(out), str(source)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert visible_in(out) == (["a.txt", "manifest.json"] if before else [])
    build = Recorder("new.txt", content="whole")
    run_recorded(out, source, build, parameters={"size": 2})
    assert build.runs == 1
    assert visible_in(out) == ["manifest.json", "new.txt"]
    assert (out / "new.txt").read_text() == "whole"
    assert not (out / ".partial").exists()


@pytest.mark.parametrize("step", range(4))
def test_stop_while_outputs_are_moved_leaves_nothing_for_good(tmp_path, source, monkeypatch, step):
    """A stop at each of the moves: two outputs, then the manifest's own rename."""
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
    replace, calls = os.replace, []

    def stop(*paths):
        calls.append(paths)
        if len(calls) == step + 1:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        run_recorded(out, source, Recorder("b.txt", "c.txt"), parameters={"size": 2})
    monkeypatch.undo()
    finished = (out / "manifest.json").exists()
    assert finished == (step == 0)  # the first rename writes the list of what is being replaced
    build = Recorder("d.txt")
    run_recorded(out, source, build, parameters={"size": 3})
    assert build.runs == 1
    assert visible_in(out) == ["d.txt", "manifest.json"]
    assert not (out / ".stale.json").exists()


@pytest.mark.parametrize("step", range(4))
def test_stop_while_outputs_are_removed_leaves_nothing_for_good(
    tmp_path, source, monkeypatch, step
):
    """A stop at each removal: the manifest, two outputs, the list of what is being removed."""
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt", "b.txt"))
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
    assert visible_in(out) == ["notes"]
    assert not (out / ".stale.json").exists()


def test_only_outputs_of_the_stage_are_removed(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
    remove_outputs("other", out)
    assert visible_in(out) == ["a.txt", "manifest.json"]
    remove_outputs("copy", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_of_the_user_is_never_replaced(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    (out / "vocab.txt").write_text("precious")
    with pytest.raises(UserError, match=r"vocab\.txt exists and was not made by copy"):
        run_recorded(out, source, Recorder("vocab.txt"))
    assert (out / "vocab.txt").read_text() == "precious"
    assert visible_in(out) == ["vocab.txt"]


def test_directory_of_another_stage_is_refused(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
    with pytest.raises(UserError, match="holds the output of copy; choose another directory"):
        run_recorded(out, source, Recorder("b.txt"), stage="other")
    assert visible_in(out) == ["a.txt", "manifest.json"]


def test_directory_in_use_is_refused(tmp_path, source):
    out = tmp_path / "out"
    with (
        holder_of(out) as process,
        pytest.raises(UserError, match=f"out is in use by process {process.pid} on host"),
    ):
        run_recorded(out, source, Recorder("a.txt"))
    run_recorded(out, source, Recorder("a.txt"))


def test_output_dir_that_is_a_file_is_refused(tmp_path, source):
    with pytest.raises(UserError, match="--output_dir: cannot write to"):
        run_recorded(source, source, Recorder("a.txt"))


def test_a_damaged_manifest_is_named_before_the_work(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
    path = out / "manifest.json"
    path.write_text(path.read_text().replace('"documents": 1', '"documents": 3'))
    build = Recorder("a.txt")
    with pytest.raises(UserError, match=rf"{path} does not match .* delete its directory and make"):
        run_recorded(out, source, build)
    assert build.runs == 0


def test_a_damaged_input_is_named_before_the_work(tmp_path, source):
    """Of the size that it had as another stage made it."""
    made = run_recorded(tmp_path / "made", source, Recorder("a.txt", content="text")) / "a.txt"
    build = Recorder("b.txt")
    run_recorded(tmp_path / "out", made, build)
    made.write_text("tezt")
    with pytest.raises(UserError, match=rf"{made} is not the file that .*manifest.json lists"):
        run_recorded(tmp_path / "out", made, build)
    assert build.runs == 1
    (made.parent / "manifest.json").unlink()
    run_recorded(tmp_path / "out", made, build)
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
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
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
        run_recorded(out, source, build, parameters={"size": 2})
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
        lambda: run_recorded(out, source, build, parameters={"size": 2}),
        lambda: remove_outputs("copy", out),
    ):
        with pytest.raises(UserError, match="sub is a directory, but listed as a file"):
            attempt()
    assert build.runs == 0
    assert visible_in(out) == ["a.txt", "link", "manifest.json", "sub"]


@pytest.mark.parametrize("content", ['{"a.txt": 1}', "[1]", '[["a.txt"]]', '"a.txt"'])
def test_a_malformed_list_of_replaced_files_is_refused(tmp_path, source, content):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
    (out / ".stale.json").write_text(content)
    with pytest.raises(UserError, match=r"\.stale\.json .* delete it"):
        run_recorded(out, source, Recorder("b.txt"), parameters={"size": 2})
    assert visible_in(out) == ["a.txt", "manifest.json"]


def test_a_listed_link_goes_and_its_target_stays(tmp_path, source):
    out = run_recorded(tmp_path / "out", source, Recorder("a.txt"))
    (tmp_path / "elsewhere").mkdir()
    (out / "a.txt").unlink()
    (out / "a.txt").symlink_to(tmp_path / "elsewhere")
    run_recorded(out, source, Recorder("b.txt"), parameters={"size": 2})
    assert visible_in(out) == ["b.txt", "manifest.json"]
    assert (tmp_path / "elsewhere").is_dir()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, source):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=f"cannot write {out} .File too large"), no_room(3):
        run_recorded(out, source, Recorder("a.txt"))
    assert visible_in(tmp_path / "out") == []
    assert not (tmp_path / "out" / ".partial").exists()


def test_an_input_that_is_gone_is_not_taken_for_an_output(tmp_path, source):
    with pytest.raises(FileNotFoundError):
        run_recorded(tmp_path / "out", source, lambda _: Path(tmp_path / "gone").read_text())
