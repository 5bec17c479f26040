"""What the commands share."""

from __future__ import annotations

import pytest

from bert_tf.durable.manifest import Manifest, describe_file, write_manifest
from bert_tf.util.errors import UserError
from data_prep.stages.settings import WorkerSettings
from data_prep.stages.stage import find_text_files


def test_text_files_without_manifests_and_empty_ones(tmp_path):
    for name, content in (("b.txt", "b"), ("a.txt", "a"), ("none", ""), ("manifest.json", "{}")):
        (tmp_path / name).write_text(content)
    assert [path.name for path in find_text_files(str(tmp_path))] == ["a.txt", "b.txt"]
    with pytest.raises(UserError, match=r"--input_file: the files in .*none' are empty"):
        find_text_files(str(tmp_path / "none"))
    with pytest.raises(UserError, match="--input_file: no file matches"):
        find_text_files(str(tmp_path / "missing*"))


def test_text_that_an_earlier_stage_lists_must_be_there(tmp_path):
    for name in ("train-0.txt", "train-1.txt", "heldout-0.txt"):
        (tmp_path / name).write_text(name)
    entries = tuple(describe_file(path) for path in sorted(tmp_path.iterdir()))
    write_manifest(tmp_path, Manifest("shards", {}, (), entries))
    assert len(find_text_files(f"{tmp_path}/train-*.txt")) == 2
    (tmp_path / "train-1.txt").unlink()
    assert len(find_text_files(f"{tmp_path}/heldout-*.txt")) == 1
    for patterns in (f"{tmp_path}/train-*.txt", str(tmp_path)):
        with pytest.raises(UserError, match=r"train-1\.txt is missing"):
            find_text_files(patterns)


def test_workers_and_a_scheduler_contradict_each_other():
    pytest.importorskip("distributed")
    with pytest.raises(UserError, match=r"^--num_workers=2 and --scheduler contradict"):
        WorkerSettings(2, "tcp://host:8786")
    assert WorkerSettings(0, "tcp://host:8786").executor.address == "tcp://host:8786"
