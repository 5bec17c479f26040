from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from bert_tf.data import manifest as manifests
from bert_tf.errors import UserError


@pytest.fixture
def stage(tmp_path):
    """A directory with one input, one output and the manifest that describes them."""
    source = tmp_path / "source.txt"
    source.write_text("one\ntwo\n")
    directory = tmp_path / "out"
    directory.mkdir()
    (directory / "a.tfrecord").write_bytes(b"12345")
    manifest = manifests.Manifest(
        stage="demo",
        parameters={"length": 128, "rate": 0.15, "name": "é"},
        inputs=(manifests.describe_file(source, count=2),),
        outputs=(
            manifests.describe_file(directory / "a.tfrecord", relative_to=directory, count=1),
        ),
        counts={"records": 1},
        vocabulary=manifests.VocabularyEntry("ab", 10, "wordpiece", True, {"pad": 0}),
    )
    manifests.write_manifest(directory, manifest)
    return directory, manifest


def _matches(directory, manifest, **changes):
    keys = ("stage", "parameters", "inputs", "vocabulary")
    arguments = {key: getattr(manifest, key) for key in keys}
    return manifests.is_up_to_date(directory, **{**arguments, **changes})


def test_describe_file_gives_size_digest_and_name(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"abc")
    entry = manifests.describe_file(path, count=7)
    assert entry == manifests.FileEntry("x.txt", 3, hashlib.sha256(b"abc").hexdigest(), 7)


def test_round_trip(stage):
    directory, manifest = stage
    assert manifests.read_manifest(directory) == manifest
    assert manifests.find_manifest(directory) == manifest
    assert manifests.find_manifest(directory / "elsewhere") is None


def test_the_hash_of_parameters_ignores_key_order_only():
    assert manifests.hash_of_json({"a": 1, "b": 2}) == manifests.hash_of_json({"b": 2, "a": 1})
    assert manifests.hash_of_json({"a": 1}) != manifests.hash_of_json({"a": 2})


def test_the_directory_digest_changes_with_an_output(stage):
    _, manifest = stage
    other = dataclasses.replace(manifest.outputs[0], sha256="0" * 64)
    assert dataclasses.replace(manifest, outputs=(other,)).sha256 != manifest.sha256
    assert dataclasses.replace(manifest).sha256 == manifest.sha256


def test_a_matching_manifest_is_up_to_date(stage):
    directory, manifest = stage
    assert _matches(directory, manifest)
    renamed = (dataclasses.replace(manifest.inputs[0], name="moved.txt"),)
    assert _matches(directory, manifest, inputs=renamed)


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": "other"},
        {"parameters": {"length": 512, "rate": 0.15, "name": "é"}},
        {"inputs": ()},
        {"inputs": (manifests.FileEntry("source.txt", 8, "0" * 64),)},
        {"vocabulary": None},
    ],
)
def test_a_changed_cause_is_not_up_to_date(stage, changes):
    directory, manifest = stage
    assert not _matches(directory, manifest, **changes)


@pytest.mark.parametrize("damage", ["missing output", "shorter output", "no manifest", "broken"])
def test_a_damaged_directory_is_not_up_to_date(stage, damage):
    directory, manifest = stage
    if damage == "missing output":
        (directory / "a.tfrecord").unlink()
    elif damage == "shorter output":
        (directory / "a.tfrecord").write_bytes(b"1234")
    elif damage == "no manifest":
        (directory / "manifest.json").unlink()
    else:
        (directory / "manifest.json").write_text("{")
    assert not _matches(directory, manifest)


def vocabulary(**changes):
    special_ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    entry = {"sha256": "0", "size": 9, "kind": "wordpiece", "lower_case": True}
    return {"vocabulary": {**entry, "special_ids": special_ids, **changes}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 99}, "format version 99"),
        ({"parameters": {"length": 129}}, "do not match their hash"),
        ({"inputs": [{"nom": "x"}]}, "not a manifest of this program"),
        ({"inputs": None}, "not a manifest of this program"),
        ({"outputs": ["a.tfrecord"]}, "not a manifest of this program"),
        ({"stage": ["a"]}, r"stage is \['a'\]"),
        ({"counts": None}, "counts is None"),
        ({"counts": {"records": "3"}}, "records is '3'"),
        ({"outputs": [{"name": 7, "bytes": 5, "sha256": ""}]}, "name is 7"),
        ({"outputs": [{"name": "a", "bytes": "5", "sha256": ""}]}, "bytes is '5'"),
        ({"outputs": [{"name": "a", "bytes": 5, "sha256": "", "count": []}]}, "count is"),
        ({"vocabulary": []}, "not a manifest of this program"),
        ({"vocabulary": ["a"]}, "not a manifest of this program"),
        ({"vocabulary": {}}, "not a manifest of this program"),
        (vocabulary(special_ids=None), "special_ids is None"),
        (vocabulary(special_ids={"pad": "0"}), "pad is '0'"),
        (vocabulary(size="many"), "size is 'many'"),
        (vocabulary(sha256=None), "sha256 is None"),
    ],
)
def test_an_unreadable_manifest_is_refused(stage, change, sentence):
    directory, _ = stage
    path = directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=sentence):
        manifests.read_manifest(directory)


def test_a_list_is_not_a_manifest(tmp_path):
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(UserError, match="not a manifest"):
        manifests.read_manifest(tmp_path)
