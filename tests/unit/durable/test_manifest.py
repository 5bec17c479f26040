from __future__ import annotations

import dataclasses
import hashlib
import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_tf.durable import manifest as manifests
from bert_tf.durable.stage import finished_call, version_differences
from bert_tf.util.errors import UserError


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
        outputs=(manifests.describe_file(directory / "a.tfrecord", count=1),),
        counts={"records": 1},
        vocabulary=manifests.VocabularyEntry("ab", 10, "wordpiece", True, {"pad": 0}),
    )
    manifests.write_manifest(directory, manifest)
    return directory, manifest


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


def test_the_directory_digest_changes_with_an_output(stage):
    _, manifest = stage
    other = dataclasses.replace(manifest.outputs[0], digest="0" * 64)
    assert dataclasses.replace(manifest, outputs=(other,)).digest != manifest.digest
    assert dataclasses.replace(manifest).digest == manifest.digest


def test_versions_are_named_and_are_no_part_of_the_digest(stage):
    directory, manifest = stage
    made = dataclasses.replace(manifest, made_by={"stage": "1", "Unicode": "13.0"})
    manifests.write_manifest(directory, made)
    assert manifests.read_manifest(directory) == made
    assert made.digest == manifest.digest
    now = dataclasses.replace(manifest, made_by={"stage": "2", "Unicode": "13.0", "zlib": "1.3"})
    assert finished_call(directory, now) == made
    assert version_differences(made, now) == "stage 1 (now 2), zlib none (now 1.3)"
    assert not version_differences(made, made)
    assert not version_differences(manifest, now)  # of before versions were recorded


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
        (
            {"outputs": [{"name": 7, "bytes": 5, "sha256": ""}]},
            "lists 7, which is not the name of a file",
        ),
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


@pytest.fixture
def shards(tmp_path):
    """A finished directory of four shards and the offsets of one."""
    for name in ("a-0.tfrecord", "a-1.tfrecord", "b-0.tfrecord", "b-1.tfrecord"):
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "b-1.tfrecord.offsets").write_bytes(b"1")
    entries = tuple(manifests.describe_file(path) for path in sorted(tmp_path.iterdir()))
    manifests.write_manifest(tmp_path, manifests.Manifest("demo", {}, (), entries))
    return tmp_path


PATTERNS = {
    "the directory": "{0}",
    "a glob": "{0}/*.tfrecord",
    "a glob of directories": "{0}*",
    "one of several": "{0}/a-0.tfrecord,{0}/b*",
}


@pytest.mark.parametrize("patterns", PATTERNS.values(), ids=PATTERNS)
def test_a_listed_file_that_is_missing_is_noticed(shards, patterns):
    manifests.require_listed_files(patterns.format(shards))
    (shards / "b-1.tfrecord").unlink()
    with pytest.raises(UserError, match=r"b-1\.tfrecord is missing, but .*manifest\.json lists it"):
        manifests.require_listed_files(patterns.format(shards))


@pytest.mark.parametrize("patterns", [*PATTERNS.values(), "{0}/b-1.tfrecord"])
def test_a_listed_file_of_another_size_is_noticed(shards, patterns):
    (shards / "b-1.tfrecord").write_bytes(b"123456")
    with pytest.raises(UserError, match=r"b-1\.tfrecord has 6 bytes, but .* lists it with 5;"):
        manifests.require_listed_files(patterns.format(shards))


@pytest.mark.parametrize("patterns", ["{0}/a-*", "{0}/?-0.tfrecord", "{0}/a-0.tfrecord"])
def test_some_of_the_listed_files_can_be_chosen(shards, patterns):
    (shards / "b-1.tfrecord").unlink()
    manifests.require_listed_files(patterns.format(shards))


def test_an_unlisted_file_is_no_part_of_a_directory(shards):
    for name in ("notes.json", ".hidden", "a-0.tfrecord.offsets"):
        (shards / name).write_text("")
    manifests.require_listed_files(str(shards))
    (shards / "c.tfrecord").write_bytes(b"1")
    with pytest.raises(UserError, match=r"c\.tfrecord is not among the files that .* lists"):
        manifests.require_listed_files(str(shards))
    manifests.require_listed_files(f"{shards}/*.tfrecord")
    manifests.require_listed_files(f"{shards}/c.tfrecord")


def test_offsets_are_not_compared(shards):
    (shards / "b-1.tfrecord.offsets").unlink()
    manifests.require_listed_files(str(shards))


def test_files_without_a_readable_manifest_are_not_compared(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    manifests.require_listed_files(str(tmp_path))
    (tmp_path / "manifest.json").write_text('{"of": "another program"}')
    manifests.require_listed_files(str(tmp_path))


PATHS = st.lists(st.sampled_from(["..", ".", "a", "", "sub", "~", "\0"]), max_size=4).map("/".join)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=8), PATHS, st.integers(), st.none()))
@example("/etc/hostname")
@example("a/../../b")
@example("\ud800")
@example("x" * 300)
@example(".lock")
@example("manifest.json")
def test_a_name_that_is_read_stays_in_its_directory(tmp_path_factory, name):
    directory = tmp_path_factory.getbasetemp() / "named"
    directory.mkdir(exist_ok=True)
    entry = {"name": name, "bytes": 1, "sha256": "", "count": None}
    content = manifests.Manifest("demo", {}, (), ()).to_dict()
    (directory / "manifest.json").write_text(json.dumps({**content, "outputs": [entry]}))
    try:
        [found] = manifests.read_manifest(directory).outputs
    except manifests.UnsafeNameError:
        return
    path = os.path.normpath(os.path.join(directory, found.name))
    assert os.path.dirname(path) == str(directory)
    assert os.path.basename(path) == name
    (directory / name).write_text("x")  # a name that the file system takes
    (directory / name).unlink()


@pytest.mark.parametrize("name", ["records-00000-of-00001.tfrecord", "a b é.txt", "~", "x.offsets"])
def test_plain_names_are_read(tmp_path, name):
    entry = manifests.FileEntry(name, 1, "")
    manifest = manifests.Manifest("demo", {}, (), (entry,))
    manifests.write_manifest(tmp_path, manifest)
    assert manifests.read_manifest(tmp_path) == manifest
