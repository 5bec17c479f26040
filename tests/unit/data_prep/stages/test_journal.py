"""What a stage that was stopped leaves behind, and which call continues it."""

from __future__ import annotations

import functools
import json
import random

import pytest

from bert_tf.durable.stage import Built, run_stage
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import RepairableError, UserError
from bert_tf.util.files import Written
from data_prep.stages import journal as journals
from data_prep.stages import sentences
from data_prep.stages.journal import JOURNAL_NAME, AppendedFile, Journal, JournaledDirectory
from data_prep.stages.shared_directory import SharedDirectory
from tests.helpers.files import content_of, no_room

ITEMS = [bytes([65 + number]) * (number + 1) for number in range(6)]


@pytest.fixture(autouse=True)
def _an_entry_for_each_item(monkeypatch):
    monkeypatch.setattr(journals, "SECONDS_BETWEEN_ENTRIES", 0.0)


class Stage:
    """Writes the items to a file, and raises ``error`` before one of them."""

    def __init__(self, stop_at=None, error=None):
        self.stop_at, self.error, self.worked_on = stop_at, error, []

    def __call__(self, directory, journal):
        with AppendedFile(directory / "a") as file:
            for number, item in journal.remaining(enumerate(ITEMS)):
                if number == self.stop_at:
                    file.write(b"half of it")
                    raise self.error
                file.write(item)
                self.worked_on.append(number)
                journal.add_item({"items": 1}, input_bytes=len(item), outputs=[file])
        return Built({"a": len(ITEMS)}, dict(journal.totals))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("some text")
    return path


def run(tmp_path, source, stage, **changes):
    options = {"parameters": {"size": 1}, "inputs": [source], "made_by": {"stage": "1"}}
    options = {**options, "use": JournaledDirectory(), **changes}
    return run_stage("copy", tmp_path / "out", build=stage, **options)


def stop(tmp_path, source, error, at=3):
    with pytest.raises(type(error)):
        run(tmp_path, source, Stage(at, error))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RepairableError("disk full."), MemoryError(), OSError(5, "lost")]
)
def test_what_can_be_repaired_is_continued(tmp_path, source, error, capsys):
    if isinstance(error, OSError):
        error.filename = "/elsewhere"
    stop(tmp_path, source, error)
    partial = tmp_path / "out" / ".partial"
    assert f"finished work is kept in {partial}; the same command will" in capsys.readouterr().err
    stage = Stage()
    out = run(tmp_path, source, stage)
    assert stage.worked_on == [3, 4, 5]
    assert (out / "a").read_bytes() == b"".join(ITEMS)
    assert json.loads((out / "manifest.json").read_text())["counts"] == {"items": 6}
    assert not partial.exists()


def test_a_call_that_shares_its_directory_is_continued(tmp_path, source):
    shared = SharedDirectory(flag="output_file", names=("a",), must_agree=())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, source, Stage(3, KeyboardInterrupt()), use=shared)
    stage = Stage()
    out = run(tmp_path, source, stage, use=shared)
    assert stage.worked_on == [3, 4, 5]
    assert (out / "a").read_bytes() == b"".join(ITEMS)
    assert {path.name for path in out.iterdir()} == {"a", "manifest.json"}


def test_bad_input_leaves_nothing(tmp_path, source):
    stop(tmp_path, source, UserError("no such text."))
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_kept_before_the_first_entry(tmp_path, source):
    stop(tmp_path, source, KeyboardInterrupt(), at=0)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("change", ["parameter", "input", "version"])
def test_another_call_begins_anew(tmp_path, source, change):
    stop(tmp_path, source, KeyboardInterrupt())
    options = {}
    if change == "parameter":
        options["parameters"] = {"size": 2}
    elif change == "input":
        source.write_text("SOME text")
    else:
        options["made_by"] = {"stage": "2"}
    stage = Stage()
    out = run(tmp_path, source, stage, **options)
    assert stage.worked_on == list(range(6))
    assert (out / "a").read_bytes() == b"".join(ITEMS)


@pytest.mark.parametrize("damage", ["cut journal", "wrong journal", "cut output", "no output"])
def test_what_is_damaged_is_not_continued(tmp_path, source, damage):
    stop(tmp_path, source, KeyboardInterrupt())
    partial = tmp_path / "out" / ".partial"
    journal = partial / JOURNAL_NAME
    if damage == "cut journal":
        journal.write_bytes(journal.read_bytes()[:-9])
    elif damage == "wrong journal":
        journal.write_text(json.dumps({**json.loads(journal.read_text()), "written": [1]}))
    elif damage == "cut output":
        (partial / "a").write_bytes(b"A")
    else:
        (partial / "a").unlink()
    stage = Stage()
    out = run(tmp_path, source, stage)
    assert stage.worked_on == list(range(6))
    assert (out / "a").read_bytes() == b"".join(ITEMS)


def test_what_came_after_the_entry_is_removed(tmp_path):
    directory = tmp_path / "partial"
    directory.mkdir()
    (directory / "inside").mkdir()
    journal = Journal(directory, "call")
    assert list(directory.iterdir()) == []
    (directory / "inside").mkdir()
    with AppendedFile(directory / "a") as one, AppendedFile(directory / "inside" / "b") as two:
        one.write(b"done")
        journal.save([one, two])
        one.write(b", not")
    (directory / "inside" / "c").touch()
    (directory / "other").mkdir()
    (directory / "other" / "d").touch()
    again = Journal(directory, "call")
    found = {p.relative_to(directory).as_posix(): c for p, c in content_of(directory).items()}
    del found[JOURNAL_NAME]
    assert found == {"a": b"done", "inside/b": b""}
    assert again.written == {"a": Written(4), "inside/b": Written(0)}


def test_records_are_continued(tmp_path):
    rng = random.Random(3)
    records = [rng.randbytes(rng.randrange(50)) for _ in range(20)]
    with TFRecordWriter(tmp_path / "whole") as writer:
        for record in records:
            writer.write(record)
    path = tmp_path / "parts"
    for part in (records[:7], [], records[7:]):
        with TFRecordWriter(path, continues=True) as writer:
            for record in part:
                writer.write(record)
            assert writer.sync() == {path: Written(path.stat().st_size, writer.num_records)}
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    offsets = [(tmp_path / f"{name}.offsets").read_bytes() for name in ("whole", "parts")]
    assert offsets[0] == offsets[1]
    assert RecordSet([path]).read(range(20)) == records


def test_a_full_disk_costs_what_did_not_fit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 1000)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"This is number {number}. It ends here.\n\n" for number in range(300)))
    settings = functools.partial(sentences.Settings, str(text), num_workers=1)
    expected = sentences.run(settings(str(tmp_path / "expected")))
    with no_room(6000), pytest.raises(RepairableError, match=r"cannot write .*; free space there"):
        sentences.run(settings(str(tmp_path / "out")))
    capsys.readouterr()
    out = sentences.run(settings(str(tmp_path / "out")))
    assert "sentences: resumed at 0.0 of 0.0 MB" in capsys.readouterr().err
    for path in expected.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ['"items": 3', '"call": "', '"bytes": '])
def test_a_damaged_journal_begins_anew_and_says_so(tmp_path, source, damage, capsys):
    stop(tmp_path, source, KeyboardInterrupt())
    path = tmp_path / "out" / ".partial" / JOURNAL_NAME
    other = damage.replace("3", "1") if "3" in damage else f"{damage}1"
    path.write_text(path.read_text().replace(damage, other, 1))
    stage = Stage()
    out = run(tmp_path, source, stage)
    assert f"{path} does not match its content_sha256" in capsys.readouterr().err
    assert stage.worked_on == list(range(len(ITEMS)))
    assert (out / "a").read_bytes() == b"".join(ITEMS)
