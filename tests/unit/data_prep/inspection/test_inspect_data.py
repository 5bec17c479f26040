"""What the inspection of data directories finds, and that it finds nothing else."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bert_tf.durable.manifest import (
    Manifest,
    VocabularyEntry,
    describe_file,
    read_manifest,
    write_manifest,
)
from bert_tf.records.layouts import (
    CLASSIFICATION_TRAINING,
    PRETRAINING_MASKED,
    PRETRAINING_UNMASKED,
    SQUAD_TRAINING,
    TAGGING_TRAINING,
)
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter, frame_records
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.inspection import inspect_data as inspect
from tests.helpers.files import content_of
from tests.helpers.programs import run as program
from tests.helpers.small_pretraining import shared_data

S, P, V = 8, 2, 30


def examples(count):
    """Records with the features of all layouts."""
    return {
        "input_ids": np.full((count, S), V - 1),
        "input_mask": np.ones((count, S), np.int64),
        "segment_ids": np.zeros((count, S), np.int64),
        "word_starts": np.ones((count, S), np.int64),
        "masked_lm_positions": np.full((count, P), S - 1),
        "masked_lm_ids": np.full((count, P), 5),
        "masked_lm_weights": np.ones((count, P), np.float32),
        "next_sentence_labels": np.ones((count, 1), np.int64),
        "unique_ids": np.arange(count)[:, None],
        "start_positions": np.zeros((count, 1), np.int64),
        "end_positions": np.ones((count, 1), np.int64),
        "is_impossible": np.zeros((count, 1), np.int64),
        "labels": np.arange(count)[:, None],
        "label_ids": np.ones((count, S), np.int64),
    }


def write(path, *, count=300, spec=PRETRAINING_MASKED, **changes):
    """``changes``: a value in the first place of a feature of the last record but one."""
    values = examples(count)
    for name, value in changes.items():
        values[name][-2, 0] = value
    with TFRecordWriter(path) as writer:
        for record in spec.encode_batch({f.name: values[f.name] for f in spec.features}):
            writer.write(record)
    return path


def write_directory(path, *, stage="create_pretraining_data", **options):
    """Two record files, their offsets and the manifest."""
    path.mkdir()
    counts = {f"{name}.tfrecord": count for name, count in (("a", 300), ("b", 3))}
    for name, count in counts.items():
        write(path / name, count=count, **options)
    entries = [describe_file(file, count=counts.get(file.name)) for file in sorted(path.iterdir())]
    vocabulary = VocabularyEntry("ab", V, "wordpiece", True, {})
    write_manifest(path, Manifest(stage, {}, (), tuple(entries), {}, vocabulary))
    return path


def test_compressed_records_are_read(tmp_path, capsys):
    path = tmp_path / "a.tfrecord.gz"
    values = {f.name: examples(300)[f.name] for f in PRETRAINING_MASKED.features}
    with TFRecordWriter(path, compression="gzip") as writer:
        records = PRETRAINING_MASKED.encode_batch(values)
        writer.write_framed(frame_records(records, compression="gzip"))
    run(tmp_path)
    assert f"{tmp_path}: 1 files, 300 records" in capsys.readouterr().err
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="1 problems in 1 files"):
        run(tmp_path)
    assert f"of {path} is damaged (" in capsys.readouterr().err


def run(patterns):
    return inspect.run(inspect.Settings(str(patterns)))


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        (PRETRAINING_MASKED, "create_pretraining_data"),
        (PRETRAINING_UNMASKED, "create_pretraining_data"),
        (SQUAD_TRAINING, "squad_features"),
    ],
)
def test_a_directory_without_problems(tmp_path, capsys, spec, stage):
    directory = write_directory(tmp_path / "data", spec=spec, stage=stage)
    run(directory)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        f"{directory}: 4 files, 303 records; {stage}, checked against its manifest.json; 0 problems"
    )


def test_text_is_compared_and_is_no_record(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("text")
    write_manifest(tmp_path, Manifest("shards", {}, (), (describe_file(tmp_path / "a.txt"),)))
    run(tmp_path)
    assert "1 files, 0 records; shards, checked" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("test")
    with pytest.raises(UserError, match="1 problems in 1 files"):
        run(tmp_path)


def test_templates_left_out_are_shown_most_frequent_first(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("text\n")
    counts = {"{{Coord}}": 7, "{{Infobox}}": 30, "{{Age}}": 7, "templates_left_out": 1050}
    manifest = Manifest("extract", {}, (), (describe_file(tmp_path / "a.txt"),), counts)
    write_manifest(tmp_path, manifest)
    run(tmp_path)
    expected = "templates left out: 1,050: {{Infobox}} 30, {{Age}} 7, {{Coord}} 7, others 1,006\n"
    assert expected in capsys.readouterr().out


def edit_record(directory):
    """Another content of the same length, with right checksums."""
    records = RecordSet([directory / "b.tfrecord"])
    [first, second, third] = records.read(range(3))
    changed = second.replace(bytes([V - 1]) * S, bytes([V - 2]) * S)
    assert changed != second
    with TFRecordWriter(directory / "b.tfrecord") as writer:
        for record in (first, changed, third):
            writer.write(record)


def edit_offsets(directory):
    """Where opening the file does not look: it would make the offsets anew."""
    path = directory / "a.tfrecord.offsets"
    content = bytearray(path.read_bytes())
    content[8 + 8 * 9] ^= 1
    path.write_bytes(content)


def edit_count(directory):
    manifest = read_manifest(directory)
    entries = [
        dataclasses.replace(entry, count=4) if entry.name == "b.tfrecord" else entry
        for entry in manifest.outputs
    ]
    write_manifest(directory, dataclasses.replace(manifest, outputs=tuple(entries)))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (edit_record, "b.tfrecord is not the file that manifest.json describes"),
        (edit_offsets, "a.tfrecord.offsets is not the file that manifest.json describes"),
        (edit_count, "b.tfrecord has 3 records, manifest.json lists 4"),
        (lambda directory: (directory / "b.tfrecord").unlink(), "b.tfrecord is missing"),
        (lambda directory: write(directory / "c", count=2), "c is not listed in manifest.json"),
    ],
    ids=["record", "offsets", "count", "missing", "unlisted"],
)
def test_what_differs_from_the_manifest(tmp_path, capsys, edit, problem):
    directory = write_directory(tmp_path / "data")
    edit(directory)
    with pytest.raises(UserError, match=r"--input_file=.*: found [12] problems in"):
        run(directory)
    assert f"{directory}/{problem}\n" in capsys.readouterr().err


def test_some_of_the_files_can_be_inspected(tmp_path, capsys):
    directory = write_directory(tmp_path / "data")
    (directory / "b.tfrecord").unlink()
    run(f"{directory}/a.*")
    assert f"{directory}: 2 files, 300 records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"input_ids": V}, f"its input_ids contains {V}, but ids in the model's vocabulary are 0"),
        ({"masked_lm_positions": S}, f"its masked_lm_positions contains {S}, but positions"),
        ({"segment_ids": 2}, "its segment_ids contains 2, but"),
        ({"masked_lm_weights": np.nan}, "its masked_lm_weights contains nan, but"),
    ],
    ids=["id", "position", "segment", "weight"],
)
def test_records_out_of_range(tmp_path, capsys, change, problem):
    directory = write_directory(tmp_path / "data", **change)
    with pytest.raises(UserError, match="2 problems in 4 files"):
        run(directory)
    said = capsys.readouterr().err
    assert f"record 298 of {directory}/a.tfrecord cannot be used: {problem}" in said
    assert f"record 1 of {directory}/b.tfrecord cannot be used: {problem}" in said


def test_files_without_a_manifest(tmp_path, capsys):
    good = write(tmp_path / "good")
    run(good)
    assert "1 files, 300 records; no manifest.json; 0 problems" in capsys.readouterr().err
    write(tmp_path / "negative", input_ids=-1)
    content = good.read_bytes()
    (tmp_path / "damaged").write_bytes(content[:-9] + b"x" + content[-8:])
    with TFRecordWriter(tmp_path / "mixed") as writer:
        for record in (*RecordSet([good]).read([0]), b""):
            writer.write(record)
    with pytest.raises(UserError, match="3 problems in 4 files"):
        run(tmp_path)
    said = capsys.readouterr().err
    assert (
        f"record 298 of {tmp_path}/negative cannot be used: its input_ids contains -1, but" in said
    )
    assert f"record 299 of {tmp_path}/damaged is damaged" in said
    assert f"record 1 of {tmp_path}/mixed is not a record for pre-training, SQuAD," in said


GLUE = (CLASSIFICATION_TRAINING, "glue_features")
TAGS = (TAGGING_TRAINING, "tagging_features")


@pytest.mark.parametrize(("spec", "stage"), [GLUE, TAGS], ids=["classes", "tags"])
def test_records_of_other_tasks(tmp_path, capsys, spec, stage):
    directory = write_directory(tmp_path / "data", spec=spec, stage=stage)
    run(directory)
    said = capsys.readouterr()
    assert "303 records; " + stage in said.err
    if spec is CLASSIFICATION_TRAINING:
        assert "  labels: 0: 2 (0.7%), 1: 2 (0.7%), 2: 2 (0.7%), 3: 1 (0.3%), " in said.out
        assert " and 290 rarer ones\n" in said.out
    edit_record(directory)
    with pytest.raises(UserError, match="1 problems"):
        run(directory)


def test_warnings_say_what_is_unusual(tmp_path, capsys):
    path = write(tmp_path / "a")
    assert run(path) >= 2
    said = capsys.readouterr()
    assert (
        "warning: all sentence pairs have label 1, so next-sentence prediction has nothing"
        in said.err
    )
    assert "masks are at an already masked position" in said.err
    assert "note: no vocabulary is stored with the records; their special ids seem" in said.out
    assert "records: 300\n" in said.out
    assert "sample: (next_sentence_labels 1) 29 29 29 29 29 29 29 [29->5]\n" in said.out


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Records of real English, with their text and vocabulary."""
    return shared_data(tmp_path_factory)


def test_real_records(data, tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    files = f"{data}/records/train,{data}/sentences"
    assert inspect.run(inspect.Settings(files, report=page)) == 0
    said = capsys.readouterr()
    manifest = read_manifest(data / "records" / "train")
    assert f"  records: {manifest.counts['records']:,}\n" in said.out
    assert f"1: {manifest.counts['random_next']:,} (" in said.out
    assert "[[MASK]->" in said.out
    counts = read_manifest(data / "sentences").counts
    assert f"  documents: {counts['documents']:,}, " in said.out
    assert f"  lines: {counts['sentences']:,}, " in said.out
    html = page.read_text()
    assert html.count("<figure") == 5
    for shown in ("Lengths", "Token ids", "Masks", "Characters of a line", '<mark class="hidden">'):
        assert shown in html
    assert "<script" not in html
    ElementTree.fromstring(re.sub(r"<!DOCTYPE html>|<(meta|link)[^>]*>", "", html))


def test_workers_find_the_same(data, capsys, monkeypatch):
    said = []
    monkeypatch.setattr(inspect, "WORTH_A_POOL", 0)
    for num_workers in (1, 2):
        inspect.run(inspect.Settings(f"{data}/records/train", num_workers=num_workers))
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def test_the_vocabulary_is_that_of_the_records(data, tmp_path):
    other = tmp_path / "vocab.txt"
    other.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    given = TokenizerFiles(vocab_file=other)
    with pytest.raises(UserError, match="is not the vocabulary that"):
        inspect.run(inspect.Settings(f"{data}/records/train", tokenizer_files=given))


def test_records_of_google_with_a_vocabulary(data, tmp_path, capsys):
    """Without a manifest: nothing is known but the special tokens that the records show."""
    for path in (data / "records" / "train").glob("*.tfrecord"):
        shutil.copy(path, tmp_path)
    assert inspect.run(inspect.Settings(f"{tmp_path}")) == 0
    alone = capsys.readouterr().out
    assert "their special ids seem to be cls 2, sep 3, pad 0, mask 4" in alone
    assert "by masked_lm_prob" not in alone
    vocabulary = TokenizerFiles(vocab_file=data / "vocabulary" / "vocab.txt")
    inspect.run(inspect.Settings(f"{tmp_path}", tokenizer_files=vocabulary))
    assert "[[MASK]->" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("report", "sentence"),
    [("{data}", "is among the files to inspect"), ("{data}/a.tfrecord/x.html", "cannot write to")],
)
def test_a_page_that_cannot_be_written(tmp_path, report, sentence):
    directory = write_directory(tmp_path / "data")
    before = content_of(tmp_path)
    with pytest.raises(UserError, match=sentence):
        inspect.run(inspect.Settings(str(directory), report=Path(report.format(data=directory))))
    assert content_of(tmp_path) == before


def test_the_exit_status(tmp_path, data):
    command = ["-m", "data_prep.inspect"]
    done = program(*command, data / "records" / "train", "--num_samples=0", check=False)
    assert done.returncode == 0, done.stderr
    done = program(*command, write(tmp_path / "unusual"), check=False)
    assert done.returncode == 1, done.stderr
    (tmp_path / "broken").write_bytes(b"no records at all")
    done = program(*command, f"--input_file={tmp_path}", check=False)
    assert done.returncode == 2, done.stderr
    done = program(*command, check=False)
    assert done.returncode == 2
    assert "give a directory or files to inspect" in done.stderr
