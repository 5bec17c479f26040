"""Copies of records and a command for each host, as a training uses them."""

from __future__ import annotations

import dataclasses

import pytest

from bert_tf.records import local_cache
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining.hosts import copy_to_local_disks, run_before_training
from bert_tf.util.errors import UserError
from tests.helpers.jobs import begun
from tests.helpers.tiny_pretraining import pretraining_settings


class Log:
    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


@pytest.fixture(name="run")
def run_with_a_log():
    return begun(log=Log())


@pytest.fixture
def files(tmp_path, record_maker):
    """Five files, two of them in another directory under the same name."""
    names = ["a/0", "a/1", "b/0"]
    return [record_maker.write(tmp_path / name, 4, first=4 * n) for n, name in enumerate(names)]


def test_sets_that_share_files_are_copied_once(tmp_path, files, run):
    train, held_out = RecordSet(files), RecordSet(files[1:2])
    found = copy_to_local_disks([train, held_out], tmp_path / "cache", None, run)
    for copies, originals in zip(found, (train, held_out)):
        indices = range(len(originals))
        assert copies.read(indices) == originals.read(indices)
        for file in copies.files:
            assert file.path.is_relative_to(tmp_path / "cache")
    assert found[0].files[1].path == found[1].files[0].path
    [line] = run.log.lines
    assert "reads copies of the records, copied now" in line
    again, nothing = copy_to_local_disks([train, None], tmp_path / "cache", None, run)
    assert (len(again), nothing) == (12, None)


def test_without_room_the_originals_are_read_and_a_warning_says_so(tmp_path, files, run):
    originals = RecordSet(files)
    found = copy_to_local_disks([originals, None], tmp_path / "cache", 1e-9, run)
    assert found == [originals, None]
    [line] = run.log.lines
    assert line.startswith("warning: host ")
    assert "original records, not copies in --local_cache_dir: they take" in line


@pytest.fixture(autouse=True)
def released():
    yield
    local_cache.release()


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_dry_run_runs_no_command(tmp_path, run, dry_run):
    settings = pretraining_settings(tmp_path)
    rehearsed = dataclasses.replace(settings.run, dry_run=dry_run)
    command = f"echo x > {tmp_path / 'marker'}"
    settings = dataclasses.replace(settings, before_training=command, run=rehearsed)
    run_before_training(settings, run)
    assert (tmp_path / "marker").exists() is not dry_run
    assert run.log.lines == ([] if dry_run else [f"running on each host: {command}"])


def test_a_command_that_fails_is_one_sentence(tmp_path, run):
    settings = dataclasses.replace(pretraining_settings(tmp_path), before_training="exit 4")
    with pytest.raises(UserError, match=r"host .*: --before_training=exit 4 ended with status 4"):
        run_before_training(settings, run)
