"""Copies of records and a command for each host, as a training uses them."""

from __future__ import annotations

import dataclasses

import pytest

from bert_tf.records import local_cache
from bert_tf.records.info import inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining.data import OpenRecords, RunRecords
from bert_tf.tasks.pretraining.run import run_before_training
from bert_tf.util.errors import UserError
from tests.helpers.jobs import begun
from tests.helpers.tiny_pretraining import CONFIG, pretraining_settings


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


def opened(files):
    records = RecordSet(files)
    return OpenRecords(records, inspect_records(records))


def test_sets_that_share_files_are_copied_once(tmp_path, files, run):
    train, held_out = opened(files), opened(files[1:2])
    records = RunRecords(train, held_out, None)
    found = records.copied_to_local_disks(tmp_path / "cache", None, run)
    assert list(found) == files
    for one in (train, held_out):
        copies = records.for_network(one, CONFIG, found).record_set
        indices = range(len(one.record_set))
        assert copies.read(indices) == one.record_set.read(indices)
        for file in copies.files:
            assert file.path.is_relative_to(tmp_path / "cache")
    [line] = run.log.lines
    assert "reads copies of the records, copied now" in line
    again = RunRecords(train, None, None).copied_to_local_disks(tmp_path / "cache", None, run)
    assert again == found


def test_without_room_the_originals_are_read_and_a_warning_says_so(tmp_path, files, run):
    records = RunRecords(opened(files), None, None)
    assert records.copied_to_local_disks(tmp_path / "cache", 1e-9, run) == {}
    assert records.for_network(records.train, CONFIG, {}).record_set is records.train.record_set
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
